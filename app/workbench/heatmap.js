// A heatmap whose cells are chosen by clicking or with the arrow keys, drawn on a canvas: fluent at 256 x 256.
const instances = new WeakMap()

// Width of the fading edge in pixels.
const FADE = 48

export default function ({ data, parentElement, setTriggerValue }) {
  let heatmap = instances.get(parentElement)
  if (!heatmap) instances.set(parentElement, (heatmap = new Heatmap(parentElement)))
  heatmap.send = cell => setTriggerValue("cell", cell)
  heatmap.update(data)
  return () => {
    heatmap.watcher.disconnect()
    instances.delete(parentElement)
  }
}

class Heatmap {
  constructor(parent) {
    this.frame = parent.querySelector(".frame")
    this.canvas = parent.querySelector(".cells")
    this.names = parent.querySelector(".names")
    this.more = parent.querySelector(".more")
    this.tip = parent.querySelector(".tip")
    this.spoken = parent.querySelector(".spoken")
    this.canvas.onmousemove = event => this.hover(this.at(event), event)
    this.canvas.onmouseleave = () => this.hover(null)
    this.canvas.onclick = event => {
      this.frame.focus({ preventScroll: true })
      const cell = this.at(event)
      if (cell) this.choose(cell, 0)
    }
    this.frame.onkeydown = event => this.press(event)
    this.frame.onscroll = () => this.edges()
    this.watcher = new ResizeObserver(() => this.draw())
    this.watcher.observe(this.frame)
  }

  update(data) {
    const bytes = Uint8Array.from(atob(data.z), c => c.charCodeAt(0))
    this.z = new Float32Array(bytes.buffer)
    this.data = data
    this.numeric = (data.text || []).every(row => row.every(cell => /^[-+\d.%*]*$/.test(cell)))
    // A choice that is still on its way to the server is not overruled by an older answer.
    if (!this.pending) {
      const [row, column, rows, columns] = data.selected || []
      this.cell = data.selected ? { row, column, rows, columns } : null
    }
    // A picture to a screen reader, or, where cells can be chosen, something that takes the arrow keys.
    this.frame.setAttribute("role", data.active ? "application" : "img")
    this.frame.setAttribute("aria-label", data.active ? `${data.alternative} Arrow keys choose a cell.` : data.alternative)
    if (data.active) this.frame.setAttribute("aria-roledescription", "heatmap")
    else this.frame.removeAttribute("aria-roledescription")
    this.canvas.style.cursor = data.active ? "pointer" : "default"
    this.draw()
  }

  // --- layout and drawing ---------------------------------------------------------------------------------------

  measure(context) {
    const { rows, columns, x, y } = this.data
    const widest = names => Math.min(170, Math.max(0, ...names.map(n => context.measureText(n).width)))
    const left = widest(y) + (this.data.yTitle ? 26 : 10)
    const room = this.frame.clientWidth - left - 74
    // Words need room to be read: in a narrow window the figure is scrolled sideways.
    const least = this.data.words && !this.numeric ? Math.min(76, widest(this.data.text.flat()) + 8) : 2
    const width = Math.max(least, Math.min(room / columns, 110))
    const turned = widest(x) > width - 6
    // A large matrix keeps cells that are not much higher than wide.
    const highest = rows > 12 ? Math.max(18, 1.4 * width) : 64
    const height = Math.max(2, Math.min(this.data.height / rows, highest))
    const below = (turned ? 12 + 0.75 * widest(x) : 18) + (this.data.xTitle ? 20 : 4)
    const top = this.data.title ? 28 : 6
    const gap = width > 9 && height > 9 ? 1 : 0
    return { left, top, width, height, gap, turned, below, right: left + columns * width, bottom: top + rows * height }
  }

  draw() {
    if (!this.data || !this.frame.clientWidth) return
    const { rows, columns, x, y } = this.data
    const style = getComputedStyle(this.frame)
    const text = style.color
    const context = this.canvas.getContext("2d")
    context.font = `12px ${style.fontFamily}`
    const box = (this.box = this.measure(context))
    const scale = window.devicePixelRatio || 1
    const total = { width: box.right + 70, height: box.bottom + box.below }
    this.canvas.width = total.width * scale
    this.canvas.height = total.height * scale
    this.canvas.style.width = `${total.width}px`
    this.canvas.style.height = `${total.height}px`
    context.scale(scale, scale)
    context.font = `12px ${style.fontFamily}`
    const { gap } = box
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        const value = this.z[row * columns + column]
        if (Number.isNaN(value)) continue
        context.fillStyle = this.colour(value)
        const left = box.left + column * box.width
        context.fillRect(left, box.top + row * box.height, box.width - gap, box.height - gap)
      }
    this.writeNumbers(context)
    context.fillStyle = text
    context.textBaseline = "middle"
    context.textAlign = "right"
    const everyRow = Math.ceil(14 / box.height)
    for (let row = 0; row < rows; row += everyRow)
      context.fillText(cut(context, y[row], 170), box.left - 6, box.top + (row + 0.5) * box.height)
    this.columnNames(context, x)
    context.textAlign = "center"
    if (this.data.xTitle) context.fillText(this.data.xTitle, (box.left + box.right) / 2, total.height - 8)
    if (this.data.yTitle) {
      context.save()
      context.translate(8, (box.top + box.bottom) / 2)
      context.rotate(-Math.PI / 2)
      context.fillText(this.data.yTitle, 0, 0)
      context.restore()
    }
    if (this.data.title) {
      context.textAlign = "left"
      context.fillText(cut(context, this.data.title, total.width - box.left), box.left, 12)
    }
    this.scaleBar(context, text)
    this.outline(context)
    this.reveal()
    this.edges()
  }

  // Scrolls sideways to the chosen cell where another one is chosen; what a person scrolls to stays.
  reveal() {
    const { box, cell, frame } = this
    const chosen = cell && `${cell.row} ${cell.column} of ${this.data.columns}`
    if (!cell || chosen === this.revealed) return
    this.revealed = chosen
    const left = box.left + cell.column * box.width
    const right = left + (cell.columns || 1) * box.width
    const seen = left - box.left >= frame.scrollLeft && right + FADE <= frame.scrollLeft + frame.clientWidth
    if (!seen) frame.scrollLeft = (left + right + box.left - frame.clientWidth) / 2
  }

  // What does not scroll along: the names of the rows, and a fading edge where there is more to see.
  edges() {
    const { frame, names, canvas, box } = this
    // Also one whose cells cannot be chosen takes the arrow keys where it is wider than the page.
    frame.tabIndex = this.data.active || frame.scrollWidth > frame.clientWidth ? 0 : -1
    names.hidden = frame.scrollLeft < 1
    this.more.hidden = frame.scrollLeft + frame.clientWidth > frame.scrollWidth - 2
    this.more.style.height = canvas.style.height
    if (names.hidden) return
    const scale = canvas.height / parseFloat(canvas.style.height)
    names.width = (box.left - 1) * scale
    names.height = canvas.height
    names.style.width = `${box.left - 1}px`
    names.style.height = canvas.style.height
    // The names alone: below them stands the end of a column's name.
    const size = [names.width, box.bottom * scale]
    names.getContext("2d").drawImage(canvas, 0, 0, ...size, 0, 0, ...size)
  }

  writeNumbers(context) {
    const { rows, columns, text } = this.data
    const box = this.box
    if (!text || box.height < 16) return
    const font = context.font
    const widest = Math.max(...text.flat().map(cell => context.measureText(cell).width))
    if (widest > box.width - 4) context.font = font.replace("12px", "10px")
    // A word may be cut short; half a number would be another number.
    if (this.numeric ? (widest * 10) / 12 > box.width - 2 && widest > box.width - 2 : box.width < 34) {
      context.font = font
      return
    }
    context.textAlign = "center"
    context.textBaseline = "middle"
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        const value = this.z[row * columns + column]
        if (Number.isNaN(value)) continue
        context.fillStyle = readable(this.colour(value))
        const at = [box.left + (column + 0.5) * box.width, box.top + (row + 0.5) * box.height]
        context.fillText(cut(context, text[row][column], box.width - 2), ...at)
      }
    context.font = font
  }

  columnNames(context, names) {
    const box = this.box
    // Turned by an eighth, names that are 12 pixels high take 17 along the axis.
    const every = Math.ceil((box.turned ? 17 : 1) / box.width)
    for (let column = 0; column < names.length; column += every) {
      const at = box.left + (column + 0.5) * box.width
      context.save()
      context.translate(at, box.bottom + 6)
      context.textBaseline = box.turned ? "middle" : "top"
      context.textAlign = box.turned ? "right" : "center"
      if (box.turned) context.rotate(-Math.PI / 4)
      context.fillText(cut(context, names[column], 170), 0, box.turned ? 2 : 0)
      context.restore()
    }
  }

  scaleBar(context, text) {
    const { zmin, zmax, quantity } = this.data
    const box = this.box
    const height = Math.max(60, box.bottom - box.top - 2)
    for (let i = 0; i < height; i++) {
      context.fillStyle = this.colour(zmax - ((zmax - zmin) * i) / height)
      context.fillRect(box.right + 12, box.top + i, 9, 1)
    }
    context.fillStyle = text
    context.textAlign = "left"
    context.textBaseline = "top"
    context.fillText(short(zmax), box.right + 25, box.top)
    context.textBaseline = "bottom"
    context.fillText(short(zmin), box.right + 25, box.top + height)
    // Beside a single row words are longer than the scale: they have the height of the whole figure.
    const whole = box.bottom + box.below
    const fits = context.measureText(quantity).width <= height
    context.save()
    context.translate(box.right + 60, fits ? box.top + height / 2 : whole / 2)
    context.rotate(-Math.PI / 2)
    context.textAlign = "center"
    context.textBaseline = "middle"
    context.fillText(cut(context, quantity, whole), 0, 0)
    context.restore()
  }

  outline(context) {
    if (!this.cell) return
    const box = this.box
    const { row, column, rows = 1, columns = 1 } = this.cell
    const [left, top] = [box.left + column * box.width, box.top + row * box.height]
    const [width, height] = [columns * box.width - box.gap, rows * box.height - box.gap]
    // Of no cell more than a third is covered; of a small one, whose colour is to be seen, nothing at all.
    const size = Math.min(box.width, box.height)
    const broad = Math.min(5, size / 3)
    const out = size < 20 ? broad / 2 : 1
    // Twice, so that the frame stands out of light cells and of dark ones; around a cell of two pixels there is no room.
    const lines = size < 3 ? [] : [[readable(this.data.outline), broad], [this.data.outline, 0.6 * broad]]
    for (const [colour, line] of lines) {
      context.strokeStyle = colour
      context.lineWidth = line
      context.strokeRect(left - out, top - out, width + 2 * out, height + 2 * out)
    }
    // So thin a frame is found by its row and column.
    context.fillStyle = this.data.outline
    if (size < 12) {
      triangle(context, left + width / 2, box.top, 0)
      triangle(context, box.left, top + height / 2, -Math.PI / 2)
    }
  }

  colour(value) {
    const { zmin, zmax, colours } = this.data
    const share = Math.min(1, Math.max(0, (value - zmin) / (zmax - zmin || 1)))
    let i = 1
    while (i < colours.length - 1 && colours[i][0] < share) i++
    const [[from, a], [to, b]] = [colours[i - 1], colours[i]]
    const t = (share - from) / (to - from || 1)
    return `rgb(${a.map((part, k) => Math.round(part + t * (b[k] - part))).join(",")})`
  }

  // --- pointing, clicking, keys ---------------------------------------------------------------------------------

  at(event) {
    const box = this.box
    const column = Math.floor((event.offsetX - box.left) / box.width)
    const row = Math.floor((event.offsetY - box.top) / box.height)
    const inside = row >= 0 && column >= 0 && row < this.data.rows && column < this.data.columns
    return inside ? { row, column } : null
  }

  words({ row, column }) {
    const { x, y, xTitle, yTitle, quantity, columns, text, words } = this.data
    const value = this.z[row * columns + column]
    const written = words && text && text[row][column]
    const measured = Number.isNaN(value) ? "no value" : `${precise(value)} ${quantity}`
    const place = `${yTitle} ${y[row]}, ${xTitle} ${x[column]}`.trim()
    return `${place}: ${written ? `${written}, ` : ""}${measured}`
  }

  hover(cell, event) {
    this.tip.hidden = !cell
    if (!cell) return
    this.tip.textContent = this.words(cell)
    const first = this.frame.scrollLeft
    const last = first + this.frame.clientWidth - this.tip.offsetWidth - 8
    this.tip.style.left = `${Math.max(first, Math.min(last, event.offsetX + 14))}px`
    this.tip.style.top = `${Math.max(0, event.offsetY - 34)}px`
  }

  choose(cell, delay) {
    if (!this.data.active) return
    this.cell = cell
    this.spoken.textContent = this.words(cell)
    this.draw()
    clearTimeout(this.pending)
    const send = () => {
      this.pending = null
      this.send(cell)
    }
    // A key pressed once asks the server at once; held down, it moves the outline and asks when it comes to rest.
    const now = performance.now()
    if (delay && now - this.pressed < 2 * delay) this.pending = setTimeout(send, delay)
    else send()
    this.pressed = now
  }

  press(event) {
    const { rows, columns } = this.data
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }
    const step = steps[event.key]
    if (!step || !this.data.active) return
    event.preventDefault()
    this.tip.hidden = true
    const from = this.cell || { row: 0, column: 0 }
    const row = Math.min(rows - 1, Math.max(0, from.row + (this.cell ? step[0] : 0)))
    const column = Math.min(columns - 1, Math.max(0, from.column + (this.cell ? step[1] : 0)))
    this.choose({ row, column }, 120)
  }
}

// A filled one whose tip is at (x, y): pointing down, or turned by an angle.
function triangle(context, x, y, angle) {
  context.save()
  context.translate(x, y)
  context.rotate(angle)
  context.beginPath()
  context.moveTo(0, 0)
  context.lineTo(-4, -5)
  context.lineTo(4, -5)
  context.fill()
  context.restore()
}

const short = value => (value === 0 ? "0" : String(Number(value.toPrecision(2))))
const precise = value => String(Number(value.toPrecision(4)))

function readable(colour) {
  const hex = /^#(..)(..)(..)$/.exec(colour)
  const [r, g, b] = hex ? hex.slice(1).map(part => parseInt(part, 16)) : colour.match(/\d+/g).map(Number)
  return 0.3 * r + 0.59 * g + 0.11 * b > 112 ? "#000" : "#fff"
}

function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text
  let end = text.length
  while (end > 1 && context.measureText(text.slice(0, end) + "…").width > width) end--
  return text.slice(0, end) + "…"
}
