// The seven colours follow Okabe and Ito (2008), who chose theirs to differ for every common kind of colour blindness; here they are
// darkened for the light ground and lightened for the dark one until each has a contrast of at least 3 to 1. Shapes differ as well, eight
// of them, so colour and shape together repeat after 56 series.

#include "cohort/report/study/study_style.h"

#include "cohort/report/draw/page.h"
#include "cohort/report/draw/style.h"

namespace cohort::report {

const char* study_style() {
  return R"css(
:root{--s0:#0a66a8;--s1:#c44a00;--s2:#00795a;--s3:#a3477f;--s4:#8a6400;--s5:#2f86b8;--s6:#5b4bb3}
@media screen and (prefers-color-scheme:dark){:root{--s0:#62b5ee;--s1:#f58b52;--s2:#3fc79f;--s3:#e79bcb;--s4:#e3bb45;--s5:#9fd4f2;--s6:#b0a2f5}}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s-grey{--c:var(--soft)}
.shapes{position:absolute}
.study .plot{padding:1.6rem .9rem 2.9rem 3.9rem}
.study .plot path{stroke-width:1.75}
.study .plot path.dashed,.legend line.dashed{stroke-dasharray:6 5}
.study .plot path.dashed{stroke-width:1.25}
.study .plot path.s-grey{stroke-width:1.1}
.study .plot path.joined{stroke-width:1.25;opacity:.55}
.study .legend{width:100%}
.study .legend li,.keys .legend li{display:inline-flex;align-items:center;gap:.4em}
.study .legend li::before,.keys .legend li::before{display:none}
.legend line{stroke:var(--c);stroke-width:2}
.mark{fill:var(--c);stroke:var(--ground);stroke-width:1;cursor:default}
.mark.hollow{fill:var(--ground);stroke:var(--c);stroke-width:1.75}
.mark:focus{outline:none}
.mark.on,.mark:focus-visible{stroke:var(--ink);stroke-width:2.25}
.bar{stroke:var(--c);stroke-width:5;opacity:.3;stroke-linecap:butt}
.bar.open{stroke-dasharray:4 3}
.band{fill:var(--soft);opacity:.13}
.upright{stroke:var(--soft);stroke-width:1.25;stroke-dasharray:2 3}
.study .plot text.upright-name{font-size:12px;fill:var(--ink);paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}
.study .readout{white-space:pre-line;max-width:min(18rem,90%);overflow-wrap:anywhere;top:auto;box-shadow:0 4px 14px var(--shade)}
.study .readout b{font-weight:620}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(15rem,46%),1fr));gap:1.25rem 1rem;margin-top:1.25rem}
.small h3{font-size:.875rem;font-weight:560}
.small .plot{padding:1.5rem .5rem 2.6rem 3rem}
.keys{margin-top:1.25rem}
.prose p{max-width:46rem;margin-top:.7rem;overflow-wrap:anywhere}
.prose ul{max-width:46rem;margin:.7rem 0 0;padding-left:1.2rem}
.prose li{margin-top:.35rem;overflow-wrap:anywhere}
.prose h3{margin-top:1.4rem}
.prose pre{max-width:46rem;margin-top:.9rem;padding:.8rem 1rem;border:1px solid var(--rule);border-radius:8px;background:var(--raised);font-size:.8125rem;line-height:1.5;overflow-x:auto}
.csv{font-size:.8125rem;color:var(--soft);margin-top:.6rem}
.csv a{color:inherit}
a{color:var(--s0)}
@media (max-width:36rem){
.study .plot{padding-left:3.3rem}.small .plot{padding:1.5rem .3rem 2.6rem 2.5rem}.small .plot text{font-size:10.5px}.panels{gap:1rem .6rem}}
@media (forced-colors:active){.mark{forced-color-adjust:none}}
)css";
}

const char* study_script() {
  return R"js(
"use strict";
for (const plot of document.querySelectorAll(".study .plot")) {
  const svg = plot.querySelector("svg"), marks = [...plot.querySelectorAll("use.mark")];
  if (!marks.length) continue;
  const box = document.createElement("div");
  box.className = "readout";
  let on = null;
  // The words move from the title, which would pop up beside the read-out, to the label.
  for (const mark of marks) {
    const title = mark.querySelector("title");
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
    mark.setAttribute("tabindex", "-1");
  }
  marks[0].setAttribute("tabindex", "0");
  const place = mark => {
    const area = svg.getBoundingClientRect(), outer = plot.getBoundingClientRect();
    return [area.left - outer.left + parseFloat(mark.getAttribute("x")) / 100 * area.width, area.top - outer.top + +mark.getAttribute("y")];
  };
  const hide = () => { if (on) on.classList.remove("on"); on = null; box.remove(); };
  const show = mark => {
    if (on === mark) return;
    hide();
    on = mark;
    mark.classList.add("on");
    box.textContent = mark.getAttribute("aria-label");
    plot.append(box);
    const [x, y] = place(mark), left = x + 12 + box.offsetWidth > plot.clientWidth ? x - 12 - box.offsetWidth : x + 12;
    box.style.left = Math.max(0, Math.min(left, plot.clientWidth - box.offsetWidth)) + "px";
    box.style.top = Math.max(0, Math.min(y - box.offsetHeight / 2, Math.max(0, plot.clientHeight - box.offsetHeight))) + "px";
  };
  const nearest = event => {
    const outer = plot.getBoundingClientRect(), px = event.clientX - outer.left, py = event.clientY - outer.top;
    let best = null, distance = 26;
    for (const mark of marks) {
      const [x, y] = place(mark), d = Math.hypot(x - px, y - py);
      if (d < distance) { best = mark; distance = d; }
    }
    return best;
  };
  const point = event => { const mark = nearest(event); if (mark) show(mark); else hide(); };
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", event => { if (event.pointerType !== "touch" && !marks.includes(document.activeElement)) hide(); });
  const order = [...marks].sort((a, b) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1]);
  plot.addEventListener("focusin", event => { if (marks.includes(event.target)) show(event.target); });
  plot.addEventListener("focusout", hide);
  plot.addEventListener("keydown", event => {
    const at = order.indexOf(event.target);
    if (at < 0) return;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: order.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    const next = order[Math.max(0, Math.min(order.length - 1, to))];
    for (const mark of marks) mark.setAttribute("tabindex", mark === next ? "0" : "-1");
    next.focus();
  });
}
)js";
}

std::string study_document(const std::string& title, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         escape_html(title) + "</title>\n<style>" + report_style() + study_style() + "</style>\n</head>\n<body>\n" + body + "<script>" +
         study_script() + "</script>\n</body>\n</html>\n";
}

}  // namespace cohort::report
