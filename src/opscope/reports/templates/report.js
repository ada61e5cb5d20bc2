"use strict";
(() => {
  // The page is complete without this script, which reads all it needs from the tables and pictures that are there.
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const scales = { k: 1e3, M: 1e6, G: 1e9, s: 1e9, ms: 1e6, "µs": 1e3, ns: 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
  document.documentElement.classList.add("js");

  // A link into a closed section opens it; without this script it leads to the section's heading.
  function reveal() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  for (const link of all('nav a[href^="#"]')) link.addEventListener("click", () => setTimeout(reveal));
  reveal();

  // A cell's value: its exact one where it has one, else the number at the start of its text with its unit.
  const number = (cell) => {
    if (cell.dataset.v) return Number(cell.dataset.v);
    const [, digits, unit] = cell.textContent.trim().match(/^>?\s*([+-]?[\d.]+)\s*([A-Za-zµ]*)/) ?? [];
    return digits === undefined ? null : Number(digits) * (scales[unit] ?? 1);
  };
  const collator = new Intl.Collator("en", { numeric: true });
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
  };

  function sort(table, head, column) {
    const numeric = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    const order = before ? (before === "descending" ? "ascending" : "descending") : numeric ? "descending" : "ascending";
    const key = (row) => (numeric ? number(row.cells[column]) : row.cells[column].textContent.trim() || null);
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => compare(a[0], b[0], sign));
    table.tBodies[0].append(...rows.map((pair) => pair[1]));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    table.dispatchEvent(new Event("sorted"));
  }

  for (const table of all("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = make("button", { type: "button" }, ...head.childNodes);
      button.addEventListener("click", () => sort(table, head, column));
      head.append(button);
    });
  }

  // Filters: a text, and a choice for every column that is marked for it. Of very many rows the first are shown.
  const most = 200;
  for (const table of all("table.filterable")) {
    const rows = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    const totals = heads.flatMap((head, column) => (head.dataset.total ? [{ column, unit: head.dataset.total }] : []));
    const texts = new Map();
    const text = make("input", { type: "search", name: "find", placeholder: "name, layer, kind ...", spellcheck: false });
    const output = make("output", {});
    const choices = heads.flatMap((head, column) => (head.dataset.pick ? [choice(head.dataset.pick, column)] : []));
    const clear = make("button", { type: "button", textContent: "clear" });
    const more = make("button", { type: "button" });
    let limit = most;

    function choice(name, column) {
      const found = new Set(rows.map((row) => row.cells[column].textContent.trim()));
      const values = [...found].filter((value) => value).sort(collator.compare);
      const options = values.map((value) => make("option", { value, textContent: value }));
      const select = make("select", { name }, make("option", { value: "", textContent: `any ${name}` }), ...options);
      return { name, column, select };
    }
    function matches(row, wanted) {
      if (choices.some((c) => c.select.value && row.cells[c.column].textContent.trim() !== c.select.value)) return false;
      if (!wanted) return true;
      if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
      return texts.get(row).includes(wanted);
    }
    function written(sum, unit, column) {
      if (unit === "large") return `${sum.toLocaleString("en")} ${heads[column].textContent}`;
      return unit === "ms" ? `${(sum / 1e6).toFixed(3)} ms` : `${(sum * 100).toFixed(1)} %`;
    }
    function update() {
      const wanted = text.value.trim().toLowerCase();
      let count = 0;
      const sums = totals.map(() => 0);
      for (const row of table.tBodies[0].rows) {
        const found = matches(row, wanted);
        if (found) count += 1;
        if (found) totals.forEach(({ column }, each) => { sums[each] += number(row.cells[column]); });
        row.classList.toggle("off", !found || count > limit);
      }
      const known = totals.filter(({ column }) => rows.some((row) => row.cells[column].dataset.v));
      const told = known.map((own) => written(sums[totals.indexOf(own)], own.unit, own.column));
      output.textContent = `${count} of ${rows.length} rows: ${told.join(", ")}`;
      more.hidden = count <= limit;
      more.textContent = `show all ${count}, not only the first ${limit}`;
    }
    table.addEventListener("sorted", update);
    text.addEventListener("input", update);
    for (const { select } of choices) select.addEventListener("change", update);
    clear.addEventListener("click", () => {
      text.value = "";
      for (const { select } of choices) select.value = "";
      update();
    });
    more.addEventListener("click", () => {
      limit = Infinity;
      update();
    });
    const labels = choices.map(({ name, select }) => make("label", {}, name, select));
    const controls = make("div", { className: "controls" }, make("label", {}, "find", text), ...labels, clear, output, more);
    controls.setAttribute("role", "search");
    table.closest(".wide").before(controls);
    update();
  }
  for (const area of all(".tall")) area.tabIndex = 0;

  // The module tree: rows below a closed one are put away; many rows begin with only the large ones open.
  for (const table of all("table.tree")) {
    const rows = [...table.tBodies[0].rows];
    const depth = rows.map((row) => Number(row.dataset.depth));
    const buttons = rows.map((row, place) => (depth[place + 1] > depth[place] ? fold(row) : null));

    function fold(row) {
      const button = make("button", { type: "button", className: "fold" });
      button.setAttribute("aria-label", row.cells[0].textContent.trim());
      button.addEventListener("click", () => set(button, !isOpen(button)));
      button.addEventListener("keydown", (event) => {
        if (event.key === "ArrowRight") set(button, true);
        if (event.key === "ArrowLeft") set(button, false);
      });
      row.cells[0].querySelector(".label").before(button);
      return button;
    }
    function isOpen(button) {
      return button.getAttribute("aria-expanded") === "true";
    }
    function set(button, open) {
      button.setAttribute("aria-expanded", String(open));
      update();
    }
    function update() {
      let limit = Infinity;
      rows.forEach((row, place) => {
        if (depth[place] <= limit) limit = Infinity;
        row.classList.toggle("off", depth[place] > limit);
        const closed = buttons[place] && !isOpen(buttons[place]);
        if (closed && depth[place] < limit) limit = depth[place];
      });
    }
    function setAll(open) {
      buttons.forEach((button, place) => button?.setAttribute("aria-expanded", String(open(rows[place]))));
      update();
    }
    const share = [...table.tHead.rows[0].cells].findIndex((head) => head.dataset.total === "share");
    const large = (row) => number(row.cells[share]) >= 0.1;
    const open = make("button", { type: "button", textContent: "open all" });
    const close = make("button", { type: "button", textContent: "close all" });
    open.addEventListener("click", () => setAll(() => true));
    close.addEventListener("click", () => setAll((row) => row === rows[0]));
    table.closest(".wide").before(make("div", { className: "controls" }, open, close));
    setAll(rows.length > 40 ? large : () => true);
  }

  // Icicles: a click or Enter makes a box as wide as the picture, Escape brings back the whole; arrows go from box to box.
  for (const picture of all("svg.icicle")) {
    const boxes = all(":scope > svg", picture);
    const place = new Map(
      boxes.map((box) => [
        box,
        { start: parseFloat(box.getAttribute("x")), width: parseFloat(box.getAttribute("width")), row: Number(box.getAttribute("y")) },
      ]),
    );
    const nearly = 0.002;
    const shown = make("p", { className: "shown dim" });
    const whole = make("button", { type: "button", textContent: "whole inference" });
    const inside = (a, b) => a.start >= b.start - nearly && a.start + a.width <= b.start + b.width + nearly;
    const above = (box) => boxes.findLast((other) => place.get(other).row < place.get(box).row && inside(place.get(box), place.get(other)) );
    const tell = (box) => { shown.textContent = box.querySelector("title").textContent; };

    function zoom(box) {
      const { start, width } = place.get(box);
      for (const each of boxes) {
        const own = place.get(each);
        const left = Math.max(0, ((own.start - start) / width) * 100);
        const right = Math.min(100, ((own.start + own.width - start) / width) * 100);
        each.classList.toggle("off", right - left < nearly);
        each.classList.toggle("small", right - left < 3);
        each.setAttribute("x", `${left}%`);
        each.setAttribute("width", `${Math.max(0, right - left)}%`);
      }
      whole.disabled = box === boxes[0];
    }
    function go(from, to) {
      if (!to) return;
      from.tabIndex = -1;
      to.tabIndex = 0;
      to.focus({ preventScroll: true });
    }
    function beside(box, step) {
      const row = boxes.filter((each) => place.get(each).row === place.get(box).row && !each.classList.contains("off"));
      return row[row.indexOf(box) + step];
    }
    const moves = {
      ArrowUp: above,
      ArrowDown: (box) => boxes.find((each) => !each.classList.contains("off") && above(each) === box),
      ArrowRight: (box) => beside(box, 1),
      ArrowLeft: (box) => beside(box, -1),
    };
    picture.setAttribute("role", "group");
    for (const box of boxes) {
      box.setAttribute("role", "button");
      box.setAttribute("aria-label", box.querySelector("title").textContent);
      box.tabIndex = box === boxes[0] ? 0 : -1;
    }
    picture.addEventListener("click", (event) => {
      const box = event.target.closest("svg.icicle > svg");
      if (box) zoom(box);
    });
    picture.addEventListener("keydown", (event) => {
      const box = event.target.closest("svg.icicle > svg");
      if (!box) return;
      if (event.key === "Enter" || event.key === " ") zoom(box);
      else if (event.key === "Escape") zoom(boxes[0]);
      else if (moves[event.key]) go(box, moves[event.key](box));
      else return;
      event.preventDefault();
    });
    for (const kind of ["mouseover", "focusin"]) {
      picture.addEventListener(kind, (event) => {
        const box = event.target.closest("svg.icicle > svg");
        if (box) tell(box);
      });
    }
    whole.addEventListener("click", () => zoom(boxes[0]));
    addEventListener("beforeprint", () => zoom(boxes[0]));
    whole.disabled = true;
    picture.before(make("div", { className: "controls" }, whole));
    picture.after(shown);
  }
})();
