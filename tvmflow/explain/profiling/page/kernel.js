// One kernel: its figures, its findings, and its texts, in a dialog that addresses open (#k0.12).

const dialog = document.getElementById("kernel");
let unpacked = null;

/** TIR and sources of both profiles; they are compressed, and most are never looked at. */
function texts() {
  unpacked ??= unpack();
  return unpacked;
}

async function unpack() {
  const packed = atob(document.getElementById("texts").textContent);
  const content = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function openKernel(id) {
  location.hash = `k${id}`;
}

function openAddress() {
  const [, id, line] = /^#k(\d+\.\d+)(?:\.(\d+))?$/.exec(location.hash) ?? [];
  const kernel = id ? kernelOf(id) : null;
  if (kernel) showKernel(kernel, line ? Number(line) : null);
  else if (dialog.open) dialog.close();
}

function showKernel(kernel, line) {
  const { kernels, sideName } = kernel.profile;
  const beside = (step, text, name) => {
    const other = kernels[kernel.index + step];
    return other
      ? element("a", { href: `#k${other.id}`, class: "button", "aria-label": name }, text) : null;
  };
  // Whoever goes from launch to launch stays on the button that does it.
  const focused = dialog.open && document.activeElement.getAttribute("aria-label");
  dialog.replaceChildren(
    element("div", { class: "title" },
      element("h2", { id: "kernel-name" }, kernel.name),
      element("span", { class: "note" }, `${comparing ? `${sideName}, ` : ""}launch ` +
        `${kernel.index + 1} of ${kernels.length}`),
      beside(-1, "‹", "Previous launch"), beside(1, "›", "Next launch"),
      element("button", { type: "button", click: () => dialog.close(), "aria-label": "Close",
        autofocus: true }, "×")),
    facts(kernel),
    kernel.findings.length
      ? element("ol", {}, kernel.findings.map((one) => findingItem(one, kernel, false))) : "",
    machineCode(kernel),
    textViews(kernel, line));
  tip.hidden = true;
  if (!dialog.open) dialog.showModal();
  else (named(focused) ?? named("Close")).focus();
}

function named(label) {
  return [...dialog.querySelectorAll("a, button")].find(
    (one) => one.getAttribute("aria-label") === label);
}

function product(sizes) {
  return sizes.map((size) => number(size)).join(" × ");
}

function facts(kernel) {
  const knobs = Object.entries(kernel.knobs).map(([name, value]) => `${name}=${value}`).join(", ");
  const sizes = kernel.global_size.length
    ? `${product(kernel.global_size)} in groups of ${product(kernel.local_size)}` : null;
  const counts = kernel.flops === null ? null :
    `${scaled(kernel.flops, "FLOP")}, ${bytes(kernel.bytes_read)} read, ` +
    `${bytes(kernel.bytes_written)} written, ${number(kernel.intensity)} FLOP/B`;
  const rates = kernel.gflops === null ? null :
    `${number(kernel.gflops)} GFLOP/s, ${number(kernel.gbps)} GB/s`;
  const clock = kernel.clock === "device" ? "by the device" : "around the call";
  const entries = [
    ["time", `${timeText(kernel)}, ${percent(kernel.share)} of the kernels, measured ${clock}`],
    ["held back by", kernel.bound],
    ["of the roofline", kernel.roofline_share === null ? null :
      `${percent(kernel.roofline_share)} of ${kernel.arithmetic} and ${kernel.memory}`],
    ["counted", counts],
    ["reached", rates],
    ["other engine", kernel.yardstick && yardstickText(kernel.yardstick)],
    ["nodes", kernel.nodes.join(", ")],
    ["function", kernel.function],
    ["family", knobs ? `${kernel.family}: ${knobs}` : kernel.family],
    ["work-items", sizes],
  ];
  return element("dl", {}, entries.filter(([, text]) => text).flatMap(([name, text]) =>
    [element("dt", {}, name), element("dd", {}, text)]));
}

/** What compilers of GPUs make of a kernel, a row each, and what is found in it. */
function machineCode(kernel) {
  if (!codes.length || kernel.profile.side < profiles.length - 1) return "";
  const names = ["machine code for", "group", "lanes", "registers", "waves", "slots", "idle", "hot",
    "mad", "fetches", "loads", "spills"];
  const rows = codes.map((code) => {
    const own = code.kernels.find((one) => one.kernel === kernel.name);
    const failure = code.failures.find((one) => one.kernel === kernel.name);
    const cells = own ? [product(own.group), percent(own.lanes_filled), number(own.registers),
      number(own.waves), number(own.whole.issue), number(own.whole.idle),
      own.is_straight ? "all" : number(own.hot.issue), percent(own.multiply_add_share),
      number(own.hot.fetches), number(own.hot.loads), number(own.spills)] : null;
    return element("tr", {}, element("td", { class: "text", title: code.compiler }, code.gpu),
      cells ? cells.map((text) => element("td", {}, text))
        : element("td", { class: "text", colspan: names.length - 1 },
          failure ? `The compiler failed: ${failure.reason}` : NONE));
  });
  const found = codes.flatMap((code) => code.findings.filter((one) => one.kernel === kernel.name)
    .map((one) => findingItem({ ...one, kind: `${code.gpu}: ${one.kind}` }, kernel, false)));
  return element("div", { id: "code" },
    element("table", {},
      element("thead", {}, element("tr", {}, names.map((name, at) =>
        element("th", { class: at ? null : "text" }, name)))),
      element("tbody", {}, rows)),
    found.length ? element("ol", {}, found) : "");
}

/** The scheduled TIR and the device's source, one shown at a time. */
function textViews(kernel, line) {
  const place = element("div", {}, element("p", { class: "note" }, "Unpacking …"));
  texts().then((all) => {
    const own = all[kernel.profile.side];
    const marked = new Set(kernel.findings.map((finding) => finding.line).filter(Boolean));
    const views = [
      ["TIR", own.tir[kernel.function], marked],
      ["source", own.sources[kernel.name], new Set()],
      ...codes.map((code, at) => [code.gpu, own.listings?.[at][kernel.name], new Set()]),
    ].filter(([, text]) => text);
    if (!views.length) {
      place.replaceChildren(element("p", { class: "note" }, "Neither TIR nor source is known."));
      return;
    }
    const buttons = views.map(([name], index) => element("button",
      { type: "button", click: () => choose(index) }, name));
    const code = element("pre", { tabindex: 0 });
    function choose(index) {
      const [name, text, lines] = views[index];
      code.setAttribute("aria-label", name);
      code.replaceChildren(...numbered(text, lines, name === "TIR" ? line : null));
      buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === index));
    }
    place.replaceChildren(element("div", { class: "controls" }, buttons), code);
    choose(0);
    const wanted = code.querySelector(".wanted");
    if (!wanted) return;
    // Where the window is large enough, only the text scrolls.
    code.scrollTop = wanted.offsetTop - code.clientHeight / 3;
    // Deep in loops a line begins beyond a narrow screen; a letter has 7.2 pixels.
    code.scrollLeft = 7.2 * wanted.textContent.search(/\S/) - code.clientWidth / 4;
    code.scrollIntoView({ block: "nearest" });
  }).catch((error) => {
    place.replaceChildren(element("p", { class: "note" },
      `Texts are not shown: this browser cannot unpack them (${error.message}).`));
  });
  return place;
}

function numbered(text, marked, wanted) {
  return text.split("\n").map((content, index) => {
    const state = index + 1 === wanted ? "found wanted" : marked.has(index + 1) ? "found" : null;
    return element("span", { class: ["line", state].filter(Boolean).join(" ") },
      `${content || " "}\n`);
  });
}

dialog.addEventListener("close", () => {
  // An address without a kernel, and no jump to the top of the page.
  if (location.hash.startsWith("#k")) history.replaceState(null, "", "#");
});
dialog.addEventListener("click", (event) => {
  // Beside the dialog's content is its backdrop.
  if (event.target === dialog) dialog.close();
});
addEventListener("hashchange", openAddress);
