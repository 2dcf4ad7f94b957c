"use strict";
// Readouts, the choice of an array, sorting and filters. Text of a plan is only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);

function lines(box, texts) {
  box.replaceChildren(...texts.map((text, i) => {
    const line = document.createElement(i ? "span" : "b");
    line.textContent = text;
    return line;
  }));
}

// A drawing that arrow keys move through is a slider: what is chosen is read out as its value.
function say(slider, i, text) {
  slider.setAttribute("aria-valuenow", i + 1);
  slider.setAttribute("aria-valuetext", text);
}

// The step over time: a cursor that the pointer or the arrow keys move from span to span.
for (const chart of document.querySelectorAll("[data-step]")) {
  const number = Number(chart.dataset.step), { at, texts } = data.steps[number];
  const readout = document.querySelector(`[data-readout="${number}"]`);
  const cursor = chart.querySelector(".cursor"), lane = chart.querySelector("svg.lane");
  let shown = -1;
  const show = (i) => {
    if (!at.length) return;
    shown = Math.max(0, Math.min(at.length - 1, i));
    const box = lane.getBoundingClientRect(), around = chart.getBoundingClientRect();
    cursor.hidden = false;
    cursor.style.left = `${box.left - around.left + (at[shown][0] / 1000) * box.width}px`;
    cursor.style.width = `${Math.max(2, ((at[shown][1] - at[shown][0]) / 1000) * box.width)}px`;
    lines(readout, texts[shown]);
    say(chart, shown, texts[shown].join("; "));
  };
  const under = (x) => {
    const box = lane.getBoundingClientRect(), here = ((x - box.left) / box.width) * 1000;
    let low = 0, high = at.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle][1] < here) low = middle + 1; else high = middle;
    }
    return low;
  };
  chart.addEventListener("pointermove", (event) => show(under(event.clientX)));
  chart.addEventListener("pointerdown", (event) => show(under(event.clientX)));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (step === undefined && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    show(event.key === "Home" ? 0 : event.key === "End" ? at.length - 1 : shown + step);
  });
}

// The mesh: the drawing of the chosen array, and what stands in the cell under the pointer.
const choice = document.querySelector("[data-arrays]");
if (choice) {
  const drawings = [...document.querySelectorAll("[data-drawing]")];
  const cellText = document.querySelector("[data-cell]");
  choice.addEventListener("change", () => {
    const row = Number(choice.value);
    document.querySelector("[data-caption]").textContent = data.captions[row];
    drawings.forEach((one) => { one.hidden = Number(one.dataset.drawing) !== data.drawings[row]; });
  });
  for (const drawing of drawings) {
    const svg = drawing.querySelector("svg"), cells = [...svg.querySelectorAll("rect")];
    let chosen = 0;
    const show = (i) => {
      if (i < 0 || i >= cells.length) return;
      cells[chosen].classList.remove("chosen");
      chosen = i;
      cells[chosen].classList.add("chosen");
      cellText.textContent = cells[chosen].firstElementChild.textContent;
      say(svg, chosen, cellText.textContent);
    };
    cells.forEach((cell, i) => {
      cell.addEventListener("pointerenter", () => show(i));
      cell.addEventListener("pointerdown", () => show(i));
    });
    const across = cells.filter((cell) => cell.getAttribute("y") === "0").length;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      show(chosen + step);
    });
  }
}

// Time against memory: the point under the pointer, or the next one.
const scatter = document.querySelector("[data-scatter]");
if (scatter) {
  const text = document.querySelector("[data-point-text]");
  const points = [...scatter.querySelectorAll("[data-point]")];
  points.sort((a, b) => parseFloat(a.style.left) - parseFloat(b.style.left));
  let chosen = 0;
  const show = (i) => {
    points[chosen].classList.remove("chosen");
    chosen = Math.max(0, Math.min(points.length - 1, i));
    points[chosen].classList.add("chosen");
    const said = data.points[Number(points[chosen].dataset.point)];
    lines(text, said);
    say(scatter, chosen, said.join(": "));
  };
  points.forEach((point, i) => {
    point.addEventListener("pointerenter", () => show(i));
    point.addEventListener("pointerdown", () => show(i));
  });
  scatter.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(chosen + step);
  });
}

// Tables: a button in each head sorts, a field filters.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
      };
      const rows = [...body.rows].map((row) => [key(row), row]);
      const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
      rows.sort(([a], [b]) => (down ? order(b, a) : order(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const field of document.querySelectorAll("[data-filter]")) {
  const rows = [...document.getElementById(field.dataset.filter).tBodies[0].rows];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    field.parentElement.querySelector("[role=status]").textContent =
      words.length ? `${shown} of ${rows.length}` : "";
  });
}
