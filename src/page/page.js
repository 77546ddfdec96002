"use strict";
// Zooming and tooltips. Without this script the charts are there as a whole, with the labels that fit.
(() => {
  const UNITS = 100000, WIDTH = 1120, LEFT = 96, PLOT = WIDTH - LEFT, LETTER = 7, SVG = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");

  const element = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const time = (s) => {
    const [value, unit] = Math.abs(s) >= 1 ? [s, "s"] : Math.abs(s) >= 1e-3 ? [s * 1e3, "ms"] : [s * 1e6, "µs"];
    return s === 0 ? "0" : `${+value.toPrecision(6)} ${unit}`;
  };
  const bytes = (b) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (b >= 999.5 && unit < 4) { b /= 1000; unit += 1; }
    return `${b.toPrecision(3)} ${units[unit]}`;
  };
  // The last index whose value is not above what is sought.
  const place = (count, at, sought) => {
    let low = 0, high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at(middle) <= sought) low = middle + 1; else high = middle;
    }
    return low - 1;
  };

  for (const frame of document.querySelectorAll("[data-chart]")) {
    const svg = frame.querySelector(".chart"), plot = svg.querySelector(".plot"), axis = svg.querySelector(".axis");
    const data = JSON.parse(document.querySelector(`[data-for="${frame.dataset.chart}"]`).textContent);
    const zoom = plot.querySelector(".zoom"), labels = plot.querySelector(".labels");
    const [begin, end] = data.range;
    let from = 0, to = UNITS;

    const pixel = (unit) => (unit - from) / (to - from) * PLOT;
    const seconds = (unit) => begin + unit / UNITS * (end - begin);

    const drawLabels = () => {
      if (!labels) return;
      labels.replaceChildren();
      let room = 1500;
      data.rows.forEach((cells, row) => {
        for (let at = 0; at < cells.length && room > 0; at += 5) {
          const [a, b, look, text] = cells.slice(at, at + 4), label = data.strings[text];
          if (b < from || a > to || !label) continue;
          const [x, right] = [Math.max(pixel(a), 0), Math.min(pixel(b), PLOT)];
          if (right - x <= LETTER * label.length) continue;
          labels.append(element("text", { x: (x + right) / 2, y: data.row * row + data.baselines[look] }, label));
          room -= 1;
        }
      });
    };
    const drawAxis = () => {
      const top = +axis.dataset.top, [first, last] = [seconds(from), seconds(to)];
      const about = (last - first) / 8, power = 10 ** Math.floor(Math.log10(about));
      const tick = [1, 2, 5, 10].map((n) => n * power).find((t) => t >= about) || about;
      axis.replaceChildren();
      for (let n = Math.ceil(first / tick); n * tick <= last && tick > 0; n += 1) {
        const x = LEFT + (n * tick - first) / (last - first) * PLOT;
        axis.append(element("path", { d: `M${x} ${top}v5` }), element("text", { x, y: top + 18 }, time(+(n * tick).toPrecision(9))));
      }
    };
    const draw = () => {
      const scale = PLOT / (to - from);
      zoom.setAttribute("transform", `translate(${-from * scale} 0) scale(${scale} 1)`);
      for (const mark of plot.querySelectorAll("[data-x]")) {
        const shift = pixel(+mark.dataset.x) - +mark.dataset.x / UNITS * PLOT;
        mark.setAttribute("transform", `translate(${shift} 0)`);
      }
      drawLabels();
      drawAxis();
    };
    const view = (a, b) => {
      const width = Math.min(Math.max(b - a, 20), UNITS);
      from = Math.min(Math.max(a, 0), UNITS - width);
      to = from + width;
      draw();
    };
    const by = (factor, around) => view(around - (around - from) * factor, around + (to - around) * factor);
    const middle = () => (from + to) / 2;

    // Where a pointer is: units across, pixels of the chart down.
    const where = (event) => {
      const box = svg.getBoundingClientRect(), scale = box.width / WIDTH;
      const x = (event.clientX - box.left) / scale - LEFT;
      return { x: from + x / PLOT * (to - from), y: (event.clientY - box.top) / scale, inside: x >= 0 };
    };
    const says = ({ x, y, inside }) => {
      const row = Math.floor(y / data.row);
      if (!inside) return null;
      if (data.curves) {
        const curve = data.curves[row];
        const at = curve ? place(curve.length, (n) => curve[n][0], x) : -1;
        return at < 0 ? null : `${bytes(curve[at][1])} in use, ${bytes(curve[at][2])} by one call alone, at ${time(seconds(x))}`;
      }
      const cells = data.rows[row];
      const at = cells ? place(cells.length / 5, (n) => cells[5 * n], x) : -1;
      if (at < 0 || cells[5 * at + 1] < x) return null;
      const [a, b] = [seconds(cells[5 * at]), seconds(cells[5 * at + 1])];
      return `${data.strings[cells[5 * at + 4]]}: ${time(b - a)}, from ${time(a)}`;
    };

    let dragged = null;
    plot.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, from, to }; plot.setPointerCapture(event.pointerId); });
    plot.addEventListener("pointerup", () => { dragged = null; });
    plot.addEventListener("pointermove", (event) => {
      if (dragged) {
        const units = (event.clientX - dragged.x) / svg.getBoundingClientRect().width * WIDTH / PLOT * (to - from);
        view(dragged.from - units, dragged.to - units);
      }
      const text = says(where(event));
      tip.hidden = !text;
      if (text) {
        tip.textContent = text;
        tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
        tip.style.top = `${event.clientY + 18}px`;
      }
    });
    plot.addEventListener("pointerleave", () => { tip.hidden = true; });
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      by(event.deltaY < 0 ? 0.8 : 1.25, where(event).x);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const step = (to - from) / 5;
      const act = {
        "+": () => by(0.6, middle()), "=": () => by(0.6, middle()), "-": () => by(1.7, middle()), "0": () => view(0, UNITS),
        ArrowLeft: () => view(from - step, to - step), ArrowRight: () => view(from + step, to + step),
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    });

    const buttons = document.createElement("div");
    buttons.className = "buttons";
    const button = (text, name, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.setAttribute("aria-label", name);
      made.title = `${name} (drag to move, Ctrl and wheel to zoom)`;
      made.addEventListener("click", act);
      buttons.append(made);
    };
    button("−", "zoom out", () => by(1.7, middle()));
    button("+", "zoom in", () => by(0.6, middle()));
    button("all", "show the whole time", () => view(0, UNITS));
    frame.before(buttons);
    draw();
  }
  document.documentElement.dataset.ready = "yes";
})();
