// Findings: what costs time in a kernel, and what to try.

function costText(finding) {
  const costs = Object.entries(finding.cost).map(([name, count]) =>
    name === "bytes" ? bytes(count) : `${number(count)} ${name}`);
  const [unit = "time"] = Object.keys(finding.cost);
  const of = unit === "bytes" ? "traffic" : unit;
  const whole = finding.kernel ? `the kernel's ${of}` : "the call";
  const share = finding.share ? `${percent(finding.share)} of ${whole}` : null;
  return [...costs, share].filter(Boolean).join(", ");
}

/** One finding; `kernel` is the launch that its links open, null where the run has none. */
function findingItem(finding, kernel, named) {
  const line = finding.line && kernel
    ? element("a", { href: `#k${kernel.id}.${finding.line}` }, `line ${finding.line}`) : null;
  const access = finding.access ? element("code", {}, finding.access) : null;
  const name = !named ? null : kernel
    ? element("a", { class: "of", href: `#k${kernel.id}` }, finding.kernel)
    : element("span", { class: "of" }, finding.kernel || "the call");
  return element("li", { class: "finding" },
    element("div", { class: "where" }, element("b", { class: "kind" }, finding.kind), name, access,
      line, element("span", { class: "cost" }, costText(finding), finding.us
        ? [", ", element("b", {}, `up to ${microseconds(finding.us)} a run`)] : null)),
    element("p", {}, finding.sentence),
    element("p", { class: "remedy" }, finding.remedy));
}

function findingsView(profile) {
  if (!profile.findings.length) {
    return element("p", { class: "note" }, profile.notes.length
      ? "None. What was not analysed is in the notes above." : "None, or kernels were not analysed.");
  }
  const found = [...profile.findings].sort((a, b) => b.us - a.us).map((finding) => (
    { kind: finding.kind, node: findingItem(finding, finding.slowest, true) }));
  const kinds = [...grouped(found, (one) => one.kind)].sort((a, b) => b[1].length - a[1].length);
  const options = kinds.map(([kind, own]) =>
    element("option", { value: kind }, `${kind} (${own.length})`));
  const choice = element("select", { "aria-label": "Kind of findings",
    change: () => found.forEach((one) => {
      one.node.hidden = Boolean(choice.value) && one.kind !== choice.value;
    }) }, element("option", { value: "" }, `every kind (${found.length})`), options);
  return element("div", {},
    element("div", { class: "controls" }, choice,
      element("span", { class: "note" }, "What may save most comes first.")),
    element("ol", { class: "findings", tabindex: 0, "aria-label": "Findings" },
      found.map((one) => one.node)));
}
