// Two profiles: which layers became faster or slower.

function pairRow({ nodes, before, after }) {
  const side = (indices, profile) => {
    const kernels = indices.map((index) => profile.kernels[index]);
    return { kernels, us: kernels.length ? sum(kernels.map((kernel) => kernel.median_us)) : null };
  };
  const [old, now] = [side(before, profiles[0]), side(after, profiles[1])];
  return {
    label: nodes.join(" + "),
    old,
    now,
    change: (now.us ?? 0) - (old.us ?? 0),
    ratio: old.us !== null && now.us ? old.us / now.us : null,
  };
}

function comparisonTable() {
  const rows = pairs.map(pairRow);
  const most = Math.max(...rows.map((row) => Math.abs(row.change)), 1e-9);
  const time = (title, side) => ({
    title, value: (row) => row[side].us, show: (row) => number(row[side].us),
  });
  const links = (side) => ({
    title: `kernels ${side === "old" ? SIDES[0] : SIDES[1]}`, text: true,
    value: (row) => row[side].kernels.map((kernel) => kernel.name).join(" "),
    show: (row) => element("div", { class: "two" }, row[side].kernels.map((kernel) =>
      element("a", { href: `#k${kernel.id}`, title: kernel.name }, kernel.name))),
  });
  return sortable({
    label: "comparison",
    columns: [
      { title: "nodes", text: true, value: (row) => row.label,
        show: (row) => element("div", { class: "two" },
          element("span", { title: row.label }, row.label)) },
      links("old"), links("now"),
      time("before, µs", "old"), time("after, µs", "now"),
      { title: "change, µs", hint: "After less before; sorts by size, whichever way it goes",
        value: (row) => Math.abs(row.change), show: (row) => changeBar(row.change, most) },
      { title: "times as fast", value: (row) => row.ratio, show: (row) => number(row.ratio) },
    ],
    rows,
    choices: [{ title: "outcome", value: outcome }],
    words: (row) => [row.label, ...[...row.old.kernels, ...row.now.kernels].map((kernel) =>
      `${kernel.name} ${kernel.family}`)].join(" "),
    total: (kept) => {
      const change = sum(kept.map((row) => row.change));
      const way = change > 0 ? "slower" : "faster";
      const verdict = change ? `${microseconds(Math.abs(change))} ${way}` : "as fast";
      return `${kept.length} of ${rows.length} layers, ${verdict}`;
    },
    sorted: "change, µs",
  });
}

function outcome(row) {
  if (row.old.us === null) return "only after";
  if (row.now.us === null) return "only before";
  if (alike(row.old.us, row.now.us)) return "the same within 5 %";
  return row.change < 0 ? "faster" : "slower";
}

/** Whether times differ by no more than what is noise on most machines. */
function alike(before, after) {
  return Math.abs(after - before) <= 0.05 * before;
}

function headline() {
  const [before, after] = profiles.map((profile) => profile.whole.median_ms * 1e3);
  const verdict = () => {
    if (profiles[0].module.name !== profiles[1].module.name) return "";
    if (alike(before, after)) return ", the same within 5 %";
    if (!before || !after) return "";
    return after < before ? `, ${number(before / after)} times as fast`
      : `, ${number(after / before)} times as slow`;
  };
  const found = differences().map((one) => element("li", {}, one));
  return element("div", {}, element("p", { class: "headline" },
    `A call: ${microseconds(before)} before, ${microseconds(after)} after${verdict()}.`),
  found.length ? element("ul", { class: "notes" }, found) : "");
}

/** Sentences on what differs between the two besides times. */
function differences() {
  const differing = (title, value, more = "") => {
    const [before, after] = profiles.map(value);
    return before === after ? null : `Different ${title}: ${before} before, ${after} after.${more}`;
  };
  const both = pairs.filter((pair) => pair.before.length && pair.after.length).length;
  return [
    differing("networks", ({ module }) => module.name,
      " Rows are tied by the names of nodes, and nodes of one name may do different work."),
    differing("devices", ({ device }) => device.name),
    differing("drivers", ({ device }) => `${device.driver} (${device.version})`),
    differing("targets", ({ module }) => `${module.target} for ${module.device}`),
    differing("clocks of kernels", ({ kernels }) => kernels[0]?.clock ?? "none"),
    differing("versions", ({ module }) => versionsOf(module)),
    both ? null : "No node or function is in both.",
  ].filter(Boolean);
}

/** A bar to the left where time was saved, to the right where it was lost. */
function changeBar(change, most) {
  const bar = element("i", { class: change > 0 ? "lost" : "saved" });
  bar.style.width = `${(50 * Math.abs(change)) / most}%`;
  const sign = change > 0 ? "+" : change < 0 ? "−" : "";
  return element("span", { class: "change" }, element("span", { class: "way" }, bar),
    element("span", {}, `${sign}${number(Math.abs(change))}`));
}
