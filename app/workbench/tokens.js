// The prompt as tokens; pointing at one colours the tokens that it looks at, clicking or arrow keys choose it.
export default function ({ data, parentElement, setTriggerValue }) {
  const row = parentElement.querySelector(".tokens")
  const note = parentElement.querySelector(".note")
  const count = data.tokens.length
  const weights = data.weights ? floats(data.weights) : null
  if (row.children.length !== count) {
    row.replaceChildren(...data.tokens.map(() => document.createElement("span")))
  }
  row.setAttribute("aria-label", data.label)
  row.tabIndex = data.active ? 0 : -1
  const chips = [...row.children]

  const paint = at => {
    chips.forEach((chip, position) => {
      const value = weights && at !== null ? weights[at * count + position] : 0
      const share = Math.min(1, Math.abs(value) / data.limit)
      const colour = value < 0 ? data.negative : data.positive
      chip.style.backgroundColor = share > 0.02 ? `color-mix(in srgb, ${colour} ${Math.round(100 * share)}%, transparent)` : ""
      chip.style.color = share > 0.55 ? "#fff" : ""
      chip.style.outline = position === data.chosen ? `2px solid ${data.outline}` : position === at ? `1px dashed ${data.outline}` : ""
    })
    if (weights && at !== null) {
      const order = chips.map((_, i) => i).filter(i => i <= at).sort((a, b) => Math.abs(weights[at * count + b]) - Math.abs(weights[at * count + a]))
      const most = order.slice(0, 3).map(i => `“${data.tokens[i]}” ${weights[at * count + i].toFixed(2)}`)
      note.textContent = `“${data.tokens[at]}” (position ${at}) looks at ${most.join(", ")}`
    } else note.textContent = ""
  }

  chips.forEach((chip, position) => {
    chip.textContent = data.tokens[position].replaceAll("\n", "↵") || "∅"
    chip.title = `position ${position}`
    chip.className = data.marks[position] || ""
    chip.onmouseenter = () => paint(position)
    chip.onclick = () => data.active && setTriggerValue("token", position)
  })
  row.onmouseleave = () => paint(data.chosen)
  row.onkeydown = event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (!step || !data.active) return
    event.preventDefault()
    const next = Math.min(count - 1, Math.max(0, (data.chosen ?? 0) + step))
    data.chosen = next
    paint(next)
    clearTimeout(row.pending)
    const send = () => setTriggerValue("token", next)
    const now = performance.now()
    // A key pressed once asks the server at once; held down, it asks when it comes to rest.
    if (now - row.pressed < 240) row.pending = setTimeout(send, 120)
    else send()
    row.pressed = now
  }
  paint(data.chosen)
}

const floats = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)
