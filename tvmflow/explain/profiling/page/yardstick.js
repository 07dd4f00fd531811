// Times of another engine on phones, next to those of the layers.

/** The table of layers for whose operator, or one near it, the other engine was measured. */
function yardstickTable(profile) {
  const layers = profile.kernels.filter((kernel) => kernel.yardstick);
  if (!layers.length) return element("p", { class: "note" }, "No layer has such times.");
  const columns = [
    { title: "layer", text: true, value: (k) => k.label, show: layerCell },
    { title: "measured", hint: "Its nearest measured operator, whose times these are", text: true,
      value: (k) => k.yardstick.nearest, show: (k) => k.yardstick.nearest },
    { title: "here", hint: "All launches of the layer, in this profile",
      value: (k) => k.yardstick.own_us,
      show: (k) => timeCell(k.yardstick.own_us, k.yardstick.own_gflops) },
    ...Object.keys(layers[0].yardstick.us).map((gpu) => ({
      title: gpu, hint: layers[0].yardstick.engine, value: (k) => k.yardstick.us[gpu],
      show: (k) => timeCell(k.yardstick.us[gpu], k.yardstick.gflops[gpu]) })),
  ];
  return element("div", {}, element("p", { class: "note" }, yardstickNote), sortable({
    label: `another engine's times${comparing ? ` ${profile.sideName}` : ""}`,
    columns,
    rows: layers,
    choices: [],
    words: (k) => [k.label, k.name, k.yardstick.text, k.yardstick.nearest].join(" "),
    total: (kept) => `${kept.length} of ${profile.layers.length} layers`,
    sorted: "here",
    attributes: (kernel) => ({ "data-kernel": kernel.id }),
  }));
}

function layerCell(kernel) {
  return element("div", { class: "two" },
    element("a", { href: `#k${kernel.id}`, title: kernel.label }, kernel.label),
    element("small", { title: kernel.yardstick.text }, kernel.yardstick.text));
}

/** A time, and below it the rate. */
function timeCell(us, gflops) {
  return [microseconds(us), gflops ? element("small", {}, `${number(gflops)} GFLOP/s`) : null];
}

function yardstickText({ text, nearest, us, engine }) {
  const times = Object.entries(us).map(([gpu, time]) => `${gpu} ${microseconds(time)}`);
  const found = nearest === "the same" ? text : `${text}; measured: ${nearest}`;
  return `${engine}: ${times.join(", ")} (${found})`;
}
