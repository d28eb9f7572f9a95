// A circuit as an SVG picture: edges can be clicked to take them out or put them back, nodes to choose them.
const NS = "http://www.w3.org/2000/svg"
const ROW = 44
const LEFT = 132
const RIGHT = 56
const LEAST = 36

const instances = new WeakMap()

export default function ({ data, parentElement, setTriggerValue }) {
  let circuit = instances.get(parentElement)
  if (!circuit) instances.set(parentElement, (circuit = new Circuit(parentElement)))
  circuit.send = setTriggerValue
  circuit.data = data
  circuit.draw()
  return () => {
    circuit.watcher.disconnect()
    instances.delete(parentElement)
  }
}

class Circuit {
  constructor(parent) {
    this.whole = parent.querySelector(".circuit")
    this.scroll = parent.querySelector(".scroll")
    this.tip = parent.querySelector(".tip")
    this.watcher = new ResizeObserver(() => this.draw())
    this.watcher.observe(this.whole)
  }

  draw() {
    if (!this.data || !this.whole.clientWidth) return
    const { nodes, edges, rows, across, active, alternative } = this.data
    // Room for the names that stand right of the last nodes.
    const right = Math.max(RIGHT, ...nodes.map(({ label, x }) => 18 + 6.6 * label.length - LEAST * (across - x)))
    const width = Math.max(this.whole.clientWidth, LEFT + right + LEAST * across)
    const height = ROW * rows.length + 12
    const step = (width - LEFT - right) / Math.max(across, 1)
    const place = ([x, y]) => [LEFT + x * step, height - ROW * (y + 0.5) - 6]
    const focused = this.scroll.querySelector(".node:focus")?.dataset.name
    const svg = make("svg", { width, height, role: "group", "aria-label": alternative, class: active ? "active" : "" })
    rows.forEach((name, row) => {
      const [, y] = place([0, row])
      const label = make("text", { x: LEFT - 22, y: y + 4, class: "row" })
      label.textContent = name
      svg.append(label)
    })
    // The strongest edges come last, so that they lie on top.
    for (const edge of [...edges].reverse()) svg.append(this.edge(edge, place))
    for (const node of nodes) svg.append(this.node(node, place))
    this.scroll.replaceChildren(svg)
    this.tip.hidden = true
    if (focused) this.scroll.querySelector(`.node[data-name="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true })
  }

  edge(edge, place) {
    const group = make("g", { class: "edge" })
    group.dataset.name = edge.name
    const [a, b, c, d] = edge.corners.map(place)
    const path = `M${a} C${b} ${c} ${d}`
    const dash = { solid: "", dash: "7 4", dot: "2 4", off: "1 7" }[edge.dash]
    const seen = make("path", { class: "seen", d: path, "stroke-width": edge.width, "stroke-dasharray": dash })
    seen.style.stroke = edge.colour
    seen.style.opacity = edge.opacity
    group.append(seen, make("path", { class: "felt", d: path }))
    this.follow(group, edge.title)
    if (this.data.active) group.onclick = () => this.send("edge", edge.name)
    return group
  }

  node(node, place) {
    const classes = ["node", node.open && "open", node.pinned && "pinned", node.chosen && "chosen"].filter(Boolean)
    const group = make("g", { class: classes.join(" "), "aria-label": node.title, role: "button" })
    group.dataset.name = node.name
    if (this.data.active) group.setAttribute("aria-pressed", Boolean(node.chosen))
    const [x, y] = place([node.x, node.y])
    group.append(make("circle", { class: "ring", cx: x, cy: y, r: 10 }), mark(node.shape, x, y))
    const label = make("text", { x: x + 11, y: y + 4 })
    label.textContent = node.label
    group.append(label)
    this.follow(group, node.title)
    if (this.data.active) {
      group.setAttribute("tabindex", "0")
      group.onclick = () => this.send("node", node.name)
      group.onkeydown = event => {
        if (event.key !== "Enter" && event.key !== " ") return
        event.preventDefault()
        this.send("node", node.name)
      }
    }
    return group
  }

  follow(element, words) {
    element.onmousemove = event => {
      const box = this.whole.getBoundingClientRect()
      this.tip.hidden = false
      this.tip.textContent = words
      const most = this.whole.clientWidth - this.tip.offsetWidth - 4
      this.tip.style.left = `${Math.max(0, Math.min(most, event.clientX - box.left + 14))}px`
      this.tip.style.top = `${Math.max(0, event.clientY - box.top - this.tip.offsetHeight - 8)}px`
    }
    element.onmouseleave = () => (this.tip.hidden = true)
  }
}

function mark(shape, x, y) {
  if (shape === "circle") return make("circle", { class: "mark", cx: x, cy: y, r: 5.5 })
  if (shape === "diamond") return make("path", { class: "mark", d: `M${x} ${y - 8} l8 8 -8 8 -8 -8 z` })
  if (shape === "cross") return make("path", { class: "mark", d: `M${x - 2} ${y - 6} h4 v4 h4 v4 h-4 v4 h-4 v-4 h-4 v-4 h4 z` })
  return make("rect", { class: "mark", x: x - 5.5, y: y - 5.5, width: 11, height: 11, rx: 2 })
}

function make(name, attributes) {
  const element = document.createElementNS(NS, name)
  for (const [key, value] of Object.entries(attributes)) if (value !== "") element.setAttribute(key, value)
  return element
}
