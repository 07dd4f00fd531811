// Tables that sort by any column and filter by words and choices.

/**
 * A table of rows.
 *
 * `columns`: {title, hint, value(row), show(row), text} in their order; rows sort by `value`, what
 * is missing last.  `choices`: {title, value(row)}, each a list to choose from.  `words(row)` is
 * what the search looks through; `total(rows)` says what is shown.
 */
function sortable({ label, columns, rows, choices, words, total, sorted, attributes }) {
  const lines = rows.map((row) => ({
    row,
    words: words(row).toLowerCase(),
    node: element("tr", attributes?.(row), columns.map((column) =>
      element("td", { class: column.text && "text" }, column.show(row)))),
  }));
  const body = element("tbody");
  const count = element("output", { class: "note", "aria-live": "polite" });
  const search = element("input", { type: "search", placeholder: "name, node, family …",
    "aria-label": `Search in ${label}`, input: () => filter() });
  const lists = choices.map(({ title, value }) => {
    const names = [...new Set(rows.map(value))].filter((name) => name !== null).sort();
    const options = names.map((name) => element("option", { value: name }, name));
    const list = element("select", { "aria-label": title, change: () => filter() },
      element("option", { value: "" }, `every ${title}`), options);
    return { list, value };
  });

  function filter() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = lines.filter((line) => {
      const chosen = lists.every(({ list, value }) => !list.value || value(line.row) === list.value);
      const found = chosen && wanted.every((word) => line.words.includes(word));
      line.node.hidden = !found;
      return found;
    });
    count.textContent = total(kept.map((line) => line.row));
  }

  const heads = columns.map((column) => {
    const button = element("button", { type: "button", title: column.hint,
      click: () => sort(column) }, column.title);
    return element("th", { class: column.text && "text", scope: "col" }, button);
  });
  let current = { column: null, falling: false };

  function sort(column) {
    // Numbers begin with the largest, names with A; a second click turns that round.
    const falling = current.column === column ? !current.falling : !column.text && !column.rising;
    current = { column, falling };
    const key = new Map(lines.map((line) => [line, column.value(line.row)]));
    lines.sort((a, b) => compared(key.get(a), key.get(b), falling));
    body.append(...lines.map((line) => line.node));
    for (const [index, head] of heads.entries()) {
      if (columns[index] !== column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    }
  }

  sort(columns.find((column) => column.title === sorted));
  filter();
  return element("div", {},
    element("div", { class: "controls" }, search, lists.map(({ list }) => list), count),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      element("table", {}, element("thead", {}, element("tr", {}, heads)), body)));
}

function compared(a, b, falling) {
  const [lacksA, lacksB] = [a === null || a === undefined, b === null || b === undefined];
  if (lacksA || lacksB) return lacksA - lacksB;
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return falling ? -order : order;
}

/** A number with a bar behind it. */
function gauge(share, text) {
  const bar = element("i", {});
  bar.style.width = `${Math.min(100, 100 * (share ?? 0))}%`;
  return element("span", { class: "gauge" }, bar, element("span", {}, text));
}

function kernelTable(profile) {
  const most = Math.max(...profile.kernels.map((kernel) => kernel.share));
  const plain = (title, key, hint, divisor = 1) => ({
    title, hint,
    value: (kernel) => kernel[key],
    show: (kernel) => number(kernel[key] === null ? null : kernel[key] / divisor),
  });
  const columns = [
    { title: "#", hint: "Order of launches", rising: true, value: (k) => k.index,
      show: (k) => String(k.index + 1) },
    { title: "kernel", text: true, value: (k) => k.name, show: kernelCell },
    { title: "family", text: true, value: (k) => k.family, show: (k) =>
      element("span", { class: `dot ${colourOf(k)}`, "data-kernel": k.id }, element("i"), k.family) },
    { title: "bound", hint: "What holds it back", text: true, value: (k) => k.bound, show: (k) => k.bound ?? NONE },
    plain("time, µs", "median_us", "Median"),
    { title: "share", hint: "Of the kernels' sum", value: (k) => k.share,
      show: (k) => gauge(part(k.share, most), percent(k.share)) },
    { title: "spread", hint: "From the 10th to the 90th percentile, of the median",
      value: spread, show: (k) => percent(spread(k)) },
    plain("MFLOP", "flops", "Operations on elements", 1e6),
    plain("MB", "bytes", "Each element that is touched, once", 1e6),
    plain("GFLOP/s", "gflops"),
    plain("GB/s", "gbps"),
    plain("FLOP/B", "intensity", "Operations for a byte"),
    { title: "roofline", hint: "Part of what the lower ceiling allows",
      value: (k) => k.roofline_share, show: (k) => gauge(k.roofline_share, percent(k.roofline_share)) },
    { title: "findings", value: (k) => k.findings.length,
      show: (k) => (k.findings.length ? String(k.findings.length) : "") },
  ];
  return sortable({
    label: `kernels${comparing ? ` ${profile.sideName}` : ""}`,
    columns,
    rows: profile.kernels,
    choices: [
      { title: "family", value: (kernel) => kernel.family },
      { title: "bound", value: (kernel) => kernel.bound },
    ],
    words: (k) => [k.name, k.function, k.label, k.family].join(" "),
    total: (kept) => `${kept.length} of ${profile.kernels.length} launches, ` +
      `${microseconds(sum(kept.map((k) => k.median_us)))}, ` +
      `${percent(sum(kept.map((k) => k.share)))} of the kernels`,
    sorted: "time, µs",
    attributes: (kernel) => ({ "data-kernel": kernel.id }),
  });
}

function spread(kernel) {
  return part(kernel.p90_us - kernel.p10_us, kernel.median_us);
}

function kernelCell(kernel) {
  // Titles have what the column's width cuts off.
  const nodes = kernel.nodes.length
    ? element("small", { title: kernel.label }, kernel.label) : null;
  return element("div", { class: "two" },
    element("a", { href: `#k${kernel.id}`, title: kernel.name }, kernel.name), nodes);
}
