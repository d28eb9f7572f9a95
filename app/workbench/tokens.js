// The prompt as tokens; pointing at one colours the tokens that it attends to, clicking or arrow keys choose it.

// Of the full colour, in per cent: the ink of the page can be read on it.
const MOST = 64

export default function ({ data, parentElement, setTriggerValue }) {
  const row = parentElement.querySelector(".tokens")
  const note = parentElement.querySelector(".note")
  const count = data.tokens.length
  const weights = data.weights ? floats(data.weights) : null
  if (row.children.length !== count) {
    row.replaceChildren(...data.tokens.map(() => document.createElement("span")))
  }
  row.setAttribute("role", data.active ? "listbox" : "list")
  row.setAttribute("aria-label", data.label)
  row.tabIndex = data.active ? 0 : -1
  row.classList.toggle("active", data.active)
  note.hidden = !weights
  const chips = [...row.children]

  const paint = at => {
    // What a token attends to lies before it; its own strongest weight has the strongest colour, unless all are small.
    const from = weights && at !== null ? weights.subarray(at * count, at * count + at + 1) : []
    const limit = Math.max(1, ...from.map(Math.abs))
    chips.forEach((chip, position) => {
      const value = from[position] ?? 0
      const share = Math.min(1, Math.abs(value) / limit)
      const colour = value < 0 ? data.negative : data.positive
      chip.style.backgroundColor = share > 0.02 ? `color-mix(in srgb, ${colour} ${Math.round(MOST * share)}%, transparent)` : ""
      chip.style.outline = position === data.chosen ? `2px solid ${data.outline}` : position === at ? `1px dashed ${data.outline}` : ""
    })
    if (weights && at !== null) {
      const order = [...from.keys()].sort((a, b) => Math.abs(from[b]) - Math.abs(from[a]))
      const most = order.slice(0, 3).map(i => `“${data.tokens[i]}” ${from[i].toFixed(2)}`)
      note.textContent = `“${data.tokens[at]}” (position ${at}) ${data.verb} ${most.join(", ")}`
    } else note.textContent = ""
  }

  // The list scrolls by itself where the prompt is long; the page does not move.
  const show = at => {
    if (!chips[at]) return
    const { offsetTop: top, offsetHeight: height } = chips[at]
    const room = row.clientHeight
    if (top < row.scrollTop) row.scrollTop = top
    else if (top + height > row.scrollTop + room) row.scrollTop = top + height - room
  }

  chips.forEach((chip, position) => {
    chip.textContent = data.tokens[position].replaceAll("\n", "↵") || "∅"
    const mark = data.marks[position] || ""
    const means = { answer: "the model answers after it", source: "the source" }[mark]
    chip.title = `position ${position}${means ? `: ${means}` : ""}`
    chip.className = mark
    chip.id = `token-${position}`
    chip.setAttribute("role", data.active ? "option" : "listitem")
    if (data.active) chip.setAttribute("aria-selected", position === data.chosen)
    chip.onmouseenter = () => paint(position)
    chip.onclick = () => data.active && setTriggerValue("token", position)
  })
  row.onmouseleave = () => paint(data.chosen)
  row.onkeydown = event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count }[event.key]
    if (!step || !data.active) return
    event.preventDefault()
    const next = Math.min(count - 1, Math.max(0, (data.chosen ?? 0) + step))
    data.chosen = next
    paint(next)
    show(next)
    row.setAttribute("aria-activedescendant", `token-${next}`)
    clearTimeout(row.pending)
    const send = () => setTriggerValue("token", next)
    const now = performance.now()
    // A key pressed once asks the server at once; held down, it asks when it comes to rest.
    if (now - row.pressed < 240) row.pending = setTimeout(send, 120)
    else send()
    row.pressed = now
  }
  if (data.active && data.chosen !== null) row.setAttribute("aria-activedescendant", `token-${data.chosen}`)
  paint(data.chosen)
  const shown = data.chosen === null ? null : `${data.chosen} ${data.tokens.join(" ")}`
  if (shown !== null && row.shown !== shown) show(data.chosen)
  row.shown = shown
}

const floats = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)
