// Small attention matrices of all heads: point at one to read its tokens, click it to open that head.
const instances = new WeakMap()

export default function ({ data, parentElement, setTriggerValue }) {
  const whole = parentElement.querySelector(".thumbnails")
  let state = instances.get(parentElement)
  if (!state) {
    instances.set(parentElement, (state = {}))
    state.watcher = new ResizeObserver(() => state.draw && state.draw())
    state.watcher.observe(whole)
  }
  state.draw = () => draw(parentElement, whole, data, setTriggerValue)
  state.draw()
  return () => {
    state.watcher.disconnect()
    instances.delete(parentElement)
  }
}

function draw(parent, whole, data, send) {
  const room = whole.clientWidth
  if (!room) return
  const label = 92
  const across = Math.max(34, Math.min(150, (room - label - 6) / data.heads - 6))
  const tip = parent.querySelector(".tip")
  const table = parent.querySelector(".pictures")
  const key = `${across} ${data.id}`
  if (table.dataset.key === key) return mark(table, data)
  table.dataset.key = key
  table.style.gridTemplateColumns = `${label}px repeat(${data.heads}, ${across}px)`
  table.replaceChildren()
  table.append(document.createElement("span"))
  for (let head = 0; head < data.heads; head++) {
    const name = document.createElement("span")
    name.textContent = `head ${head}`
    name.className = "column"
    table.append(name)
  }
  data.rows.forEach((row, number) => {
    const name = document.createElement("span")
    name.textContent = row.name
    name.className = "row"
    table.append(name)
    const values = numbers(row.values)
    for (let head = 0; head < data.heads; head++) {
      const canvas = document.createElement("canvas")
      canvas.width = canvas.height = data.size
      canvas.style.width = canvas.style.height = `${across}px`
      canvas.dataset.at = `${row.layer} ${head}`
      canvas.setAttribute("role", "button")
      canvas.setAttribute("aria-label", `Attention of layer ${row.layer}, head ${head}${row.words}`)
      const own = values.subarray(head * data.size ** 2, (head + 1) * data.size ** 2)
      paint(canvas, own, data)
      const at = event => {
        const box = canvas.getBoundingClientRect()
        const cell = part => Math.max(0, Math.min(data.size - 1, Math.floor(part * data.size)))
        return [cell((event.clientY - box.top) / box.height), cell((event.clientX - box.left) / box.width)]
      }
      canvas.onmousemove = event => {
        const [query, to] = at(event)
        const value = own[query * data.size + to] * data.unit
        const seen = to > query ? "cannot see later tokens" : value.toFixed(3)
        tip.hidden = false
        tip.textContent = `L${row.layer}H${head}${row.words}\n“${data.names[query]}” to “${data.names[to]}”: ${seen}`
        const box = whole.getBoundingClientRect()
        tip.style.left = `${Math.min(whole.clientWidth - tip.offsetWidth - 4, event.clientX - box.left + 14)}px`
        tip.style.top = `${Math.max(0, event.clientY - box.top - tip.offsetHeight - 8)}px`
      }
      canvas.onmouseleave = () => (tip.hidden = true)
      canvas.onclick = event => {
        const [query, to] = at(event)
        send("head", { layer: row.layer, head, row: number, query, key: Math.min(query, to) })
      }
      canvas.onkeydown = event => {
        const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] || []
        if (down !== undefined) {
          event.preventDefault()
          const pictures = [...table.querySelectorAll("canvas")]
          const next = pictures[(number + down) * data.heads + head + right]
          if (next && head + right >= 0 && head + right < data.heads) stop(table, next).focus()
          return
        }
        if (event.key !== "Enter" && event.key !== " ") return
        event.preventDefault()
        send("head", { layer: row.layer, head, row: number, query: null, key: null })
      }
      table.append(canvas)
    }
  })
  mark(table, data)
}

// One of the pictures is where Tab stops; arrow keys go on from there.
function stop(table, canvas) {
  for (const other of table.querySelectorAll("canvas")) other.tabIndex = other === canvas ? 0 : -1
  return canvas
}

function mark(table, data) {
  const focused = table.querySelector("canvas:focus")
  stop(table, focused || table.querySelector(`canvas[data-at="${data.chosen}"]`) || table.querySelector("canvas"))
  for (const canvas of table.querySelectorAll("canvas")) {
    const chosen = canvas.dataset.at === data.chosen
    canvas.classList.toggle("chosen", chosen)
    canvas.setAttribute("aria-pressed", chosen)
  }
}

function paint(canvas, values, { size, colours, unit }) {
  const context = canvas.getContext("2d")
  const picture = context.createImageData(size, size)
  for (let query = 0; query < size; query++)
    for (let to = 0; to <= query; to++) {
      const at = query * size + to
      const share = (Math.max(-1, Math.min(1, values[at] * unit)) + 1) / 2
      let i = 1
      while (i < colours.length - 1 && colours[i][0] < share) i++
      const [[from, a], [until, b]] = [colours[i - 1], colours[i]]
      const t = (share - from) / (until - from || 1)
      for (let k = 0; k < 3; k++) picture.data[4 * at + k] = a[k] + t * (b[k] - a[k])
      picture.data[4 * at + 3] = 255
    }
  context.putImageData(picture, 0, 0)
}

const numbers = text => new Int16Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)
