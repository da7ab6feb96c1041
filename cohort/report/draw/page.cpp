#include "cohort/report/draw/page.h"

#include "cohort/base/fail.h"

namespace cohort::report {
namespace {

// Style sheets and scripts. Colours are CSS variables, set for light and for dark mode; SVG uses the same ones. Text in the soft colour has
// a contrast of at least 5 to 1, and every colour of a curve or bar at least 3 to 1.
const char* report_style() {  // NOLINT(readability-function-size): one literal
  return R"css(
:root{color-scheme:light dark;
--ground:#fbfbf9;--ink:#1a2025;--soft:#5a656e;--rule:#dfe3e6;--grid:#e9ecee;--raised:#fff;
--train:#2a66b0;--val:#c2541b;--rate:#7a55b8;--speed:#19766c;--norm:#7b6a16;
--run1:#2a66b0;--run2:#c2541b;--run3:#19766c;--run4:#7a55b8;--run5:#a3246a;--run6:#7b6a16;--run7:#3a8bbd;--run8:#5c4033;--run9:#5a656e;--run10:#3f7d20;
--data:#1d8a7e;--compute:#2f6fbd;--exchange:#c9721a;--optimizer:#8560c0;--other:#87929b;
--right:42 102 176;--wrong:194 84 27;--on-heat:#fff;--shade:rgb(20 30 40/.16);
--good:#1f7a44;--warn:#a4510d;--warn-ground:#fdf3e7}
@media screen and (prefers-color-scheme:dark){:root{
--ground:#14181b;--ink:#e7eaec;--soft:#9ba7b0;--rule:#30373d;--grid:#252b30;--raised:#1d2226;
--train:#6fb1f2;--val:#f2985f;--rate:#b999f0;--speed:#52c4b5;--norm:#cdb85a;
--run1:#6fb1f2;--run2:#f2985f;--run3:#52c4b5;--run4:#b999f0;--run5:#ee7fb8;--run6:#cdb85a;--run7:#8fd3f0;--run8:#c8a58c;--run9:#9ba7b0;--run10:#93cf6b;
--data:#45b5a7;--compute:#5b9fe6;--exchange:#e59a4a;--optimizer:#aa88e2;--other:#7c8790;
--right:58 116 190;--wrong:196 92 42;--on-heat:#fff;--shade:rgb(0 0 0/.6);
--good:#63c48c;--warn:#f0ab66;--warn-ground:#2b2219}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:70rem;margin:0 auto;padding:clamp(1.5rem,5vw,3.5rem) clamp(1rem,4vw,2.5rem) 3rem}
h1,h2,h3,p,dl,dd,ul,figure,pre{margin:0;padding:0}
h1{font-size:clamp(1.9rem,1.3rem + 2.6vw,3rem);line-height:1.12;font-weight:680;letter-spacing:-.022em;margin:.9rem 0 0;overflow-wrap:anywhere}
h1 span{display:block;font-size:clamp(1.05rem,.95rem + .5vw,1.3rem);line-height:1.4;font-weight:450;letter-spacing:-.004em;color:var(--soft);text-wrap:balance}
h1 .what{margin-bottom:.15em}h1 .rest{margin-top:.4em}
h2{font-size:1.3rem;line-height:1.25;font-weight:640;letter-spacing:-.012em}
h3{font-size:.95rem;font-weight:620}
section{margin-top:clamp(2.75rem,6vw,4rem)}
.intro{color:var(--soft);max-width:44rem;margin-top:.3rem}
.top{display:flex;flex-wrap:wrap;gap:.4rem 1rem;align-items:center;font-size:.875rem;color:var(--soft)}
.brand{font-weight:620;color:var(--ink);letter-spacing:.01em}
.state::before{content:"";display:inline-block;width:.55em;height:.55em;border-radius:50%;background:var(--good);margin-right:.45em;vertical-align:.06em}
.state.open::before,.state.interrupted::before,.state.failed::before{background:var(--warn)}
.banner{margin-top:1.5rem;padding:.75rem 1rem;border-left:3px solid var(--warn);background:var(--warn-ground);border-radius:0 6px 6px 0;max-width:48rem;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(9.25rem,44%),1fr));gap:1.4rem 1.5rem;margin-top:2.5rem}
.tile{border-top:1px solid var(--rule);padding-top:.6rem;min-width:0}
.tile dt{font-size:.8125rem;color:var(--soft)}
.tile dd{font-size:1.5rem;line-height:1.3;font-weight:600;letter-spacing:-.015em;font-variant-numeric:tabular-nums}
.tile dd.note{font-size:.8125rem;line-height:1.4;font-weight:400;letter-spacing:0;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(27rem,100%),1fr));gap:2rem 2.5rem;margin-top:2rem}
.chart{min-width:0;break-inside:avoid}.wide{margin-top:1.5rem}
figcaption{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;align-items:baseline}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;list-style:none;font-size:.8125rem;color:var(--soft)}
.legend b{font-weight:620;color:var(--ink);font-variant-numeric:tabular-nums}
.legend li::before,.key::before{content:"";display:inline-block;width:.9em;height:.2em;border-radius:1px;background:var(--c);margin-right:.45em;vertical-align:.22em}
.legend .thin::before{opacity:.4}
.legend .m-checkpoint::before{width:0;height:0;border:.3em solid transparent;border-bottom:.5em solid var(--soft);border-top:0;background:none;border-radius:0;vertical-align:.02em}
.legend .m-resume::before{width:0;height:.9em;border-left:2px dashed var(--soft);background:none;border-radius:0;vertical-align:-.08em}
.plot{position:relative;padding:.75rem .9rem 2.7rem 3.4rem}
.plot svg{display:block}
.plot>svg{width:100%;overflow:visible}
.plot text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.plot .grid{stroke:var(--grid);stroke-width:1}
.plot .base{stroke:var(--rule);stroke-width:1}
.plot path{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
.plot path.thin{stroke-width:1;opacity:.32}
.plot circle{fill:var(--ground);stroke:var(--c);stroke-width:2}
.plot circle.lone{fill:var(--c)}
.m-checkpoint path,.plot path.m-checkpoint{fill:var(--soft);stroke:none}
.plot .m-resume{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.plot text.resumed{font-size:11px}
.cursor{stroke:var(--soft);stroke-width:1}
.readout{position:absolute;top:.25rem;z-index:1;pointer-events:none;padding:.35rem .6rem;border:1px solid var(--rule);border-radius:6px;background:var(--raised);
font-size:.8125rem;line-height:1.45;white-space:nowrap;font-variant-numeric:tabular-nums}
.note-below{font-size:.8125rem;color:var(--soft)}
.c-train{--c:var(--train)}.c-val{--c:var(--val)}.c-rate{--c:var(--rate)}.c-speed{--c:var(--speed)}.c-norm{--c:var(--norm)}
.c-run1{--c:var(--run1)}.c-run2{--c:var(--run2)}.c-run3{--c:var(--run3)}.c-run4{--c:var(--run4)}.c-run5{--c:var(--run5)}.c-run6{--c:var(--run6)}.c-run7{--c:var(--run7)}.c-run8{--c:var(--run8)}.c-run9{--c:var(--run9)}.c-run10{--c:var(--run10)}
.c-data{--c:var(--data)}.c-compute{--c:var(--compute)}.c-exchange{--c:var(--exchange)}.c-optimizer{--c:var(--optimizer)}.c-other{--c:var(--other)}
.stack{display:block;width:100%;height:1.125rem;border-radius:4px}
.stack.total{height:2.25rem;margin:1.5rem 0 1.25rem;border-radius:6px}
.stack rect{fill:var(--c);stroke:var(--ground);stroke-width:1.5}
.key::before{width:.7em;height:.7em;border-radius:2px;vertical-align:-.02em}
.workers{display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:.5rem 1rem;align-items:center;margin:1.75rem 0 0;font-size:.875rem;font-variant-numeric:tabular-nums}
.workers+h3{margin-top:1.75rem}h3+.workers,.keys+.workers{margin-top:.75rem}.keys{color:var(--soft);font-size:.875rem}
.scroll{overflow-x:auto;max-width:100%;margin-top:1.25rem;
background:linear-gradient(90deg,var(--ground) 40%,transparent) 0 0/2.5rem 100% no-repeat local,linear-gradient(-90deg,var(--ground) 40%,transparent) 100% 0/2.5rem 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) 0 0/.75rem 100% no-repeat,linear-gradient(-90deg,var(--shade),transparent) 100% 0/.75rem 100% no-repeat}
.scroll:focus-visible{outline:2px solid var(--train);outline-offset:3px}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
.scroll>table{min-width:min(100%,34rem)}
.scroll>svg{display:block;min-width:40rem}
.timeline>svg{min-width:60rem}
.workers+p{margin-top:1.25rem}
.names{display:block;white-space:normal;min-width:14rem;max-width:36rem;overflow-wrap:anywhere}
th,td{padding:.45rem 1.25rem .45rem 0;text-align:left;font-weight:400;border-bottom:1px solid var(--rule);white-space:nowrap;vertical-align:baseline}
thead th{color:var(--soft);font-size:.8125rem}
th:last-child,td:last-child{padding-right:0}
.number{text-align:right}
td small{display:block;color:var(--soft);font-size:.8125rem}
td.about{white-space:normal;color:var(--soft)}
.confusion{display:grid;grid-template-columns:minmax(0,auto) minmax(14rem,1fr);gap:2rem 3.5rem;align-items:start}
.heat{font-size:.8125rem;border-collapse:separate;border-spacing:2px}
.scroll>table.heat{min-width:0}
.heat th,.heat td{border:0;padding:0}
.heat td{width:2.9rem;min-width:2.2rem;height:2.1rem;text-align:center;vertical-align:middle;border-radius:3px;background:rgb(var(--wrong)/var(--a,0))}
.heat td.right{background:rgb(var(--right)/var(--a,0))}
.heat td.dark{color:var(--on-heat)}
.heat td.zero{color:var(--soft);opacity:.55}
.heat tbody th{position:sticky;left:0;background:var(--ground);padding-right:.7rem;text-align:right;max-width:9rem;overflow:hidden;text-overflow:ellipsis;vertical-align:middle;font-size:.8125rem}
.heat thead th{vertical-align:bottom;text-align:center;color:var(--ink);padding-bottom:.4rem}
.heat thead th span{display:inline-block;writing-mode:vertical-rl;transform:rotate(180deg);max-height:8rem;overflow:hidden}
.heat thead th.corner{color:var(--soft);text-align:right;padding-right:.7rem}
.recall{display:grid;grid-template-columns:auto minmax(3rem,1fr) auto;gap:.4rem .8rem;align-items:center;font-size:.875rem;font-variant-numeric:tabular-nums;margin-top:1.25rem}
.recall .name{max-width:10rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.recall svg{display:block;width:100%;height:.5rem;border-radius:3px}
.recall .track{fill:var(--grid)}.recall .bar{fill:var(--train)}
.mistakes{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.5rem,1fr));gap:1.5rem 1.25rem;margin-top:1.25rem}
.mistakes figure{margin:0;min-width:0}
.mistakes img{display:block;width:6rem;height:6rem;object-fit:contain;object-position:0 0;image-rendering:pixelated}
.mistakes figcaption{display:block;margin-top:.4rem;font-size:.8125rem;line-height:1.4;overflow-wrap:anywhere}
.mistakes b{font-weight:620}
.mistakes small{display:block;color:var(--soft);font-size:.8125rem}
.sample{margin-top:1.25rem;padding:1.1rem 1.25rem;border:1px solid var(--rule);border-radius:8px;background:var(--raised);
font:.875rem/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}
.sample b{color:var(--train);font-weight:620}
.definitions{columns:3 17rem;column-gap:2.5rem;margin-top:1.25rem;font-size:.875rem}
.definitions div{display:flex;justify-content:space-between;gap:1rem;padding:.32rem 0;border-bottom:1px solid var(--grid);break-inside:avoid}
.definitions dt{color:var(--soft);white-space:nowrap}
.definitions dd{text-align:right;overflow-wrap:anywhere;min-width:0;font-variant-numeric:tabular-nums}
.definitions dd.none{color:var(--soft)}
footer{margin-top:4rem;padding-top:1rem;border-top:1px solid var(--rule);font-size:.8125rem;color:var(--soft);overflow-wrap:anywhere}
@media (max-width:52rem){.confusion{grid-template-columns:minmax(0,1fr)}}
@media (max-width:36rem){
.plot{padding-left:2.9rem}.plot .minor{display:none}.about{display:none}
.legend{width:100%}
.heat{font-size:.75rem;border-spacing:1px}.heat td{width:1.95rem;min-width:1.95rem;height:1.95rem}
.heat tbody th,.heat thead th.corner{max-width:5.5rem;padding-right:.45rem;font-size:.75rem}.heat thead th.corner{white-space:normal;line-height:1.3}}
@media print{
:root{--ground:#fff;--ink:#000;--soft:#444;--rule:#bbb;--grid:#ddd;--raised:#fff}
body{font-size:11pt}main{max-width:none;padding:0}
section{margin-top:2rem}h2,h3{break-after:avoid}
tr,.tile,.sample{break-inside:avoid}
.heat td,.banner,.legend li::before,.key::before,.state::before{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.scroll{overflow:visible;background:none}.readout,.cursor{display:none}}
)css";
}

const char* report_script() {
  return R"js(
"use strict";
function addReadouts() {
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg"), d = svg.dataset, logarithmic = d.log === "1";
  const x0 = +d.x0, x1 = +d.x1, y0 = +d.y0, y1 = +d.y1;
  const curves = [...svg.querySelectorAll("path[data-name]")].map(path => ({
    name: path.dataset.name,
    points: path.getAttribute("d").split(/[ML]/).slice(1).map(pair => pair.trim().split(" ").map(Number))
  })).filter(curve => curve.points.length);
  if (!curves.length) continue;
  // The title stays for screen readers, but must not pop up beside the read-out.
  const title = svg.querySelector(":scope > title");
  svg.setAttribute("aria-label", title.textContent); svg.removeAttribute("aria-labelledby"); title.remove();
  const value = y => { const f = 1 - y / 1000; return logarithmic ? y0 * Math.pow(y1 / y0, f) : y0 + f * (y1 - y0); };
  const text = v => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en-US") : v === 0 ? "0" : Math.abs(v) < 1e-4 ? v.toExponential(2) : v.toPrecision(3);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", "cursor"); line.setAttribute("y1", 0); line.setAttribute("y2", d.height);
  const box = document.createElement("div");
  box.className = "readout";
  const hide = () => { line.remove(); box.remove(); };
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("pointermove", event => {
    const area = svg.getBoundingClientRect(), at = (event.clientX - area.left) / area.width * 1000;
    if (at < -20 || at > 1020) return hide();
    const near = curves.map(curve => curve.points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    const x = near.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)[0];
    box.textContent = "";
    const add = words => { const row = document.createElement("div"); row.textContent = words; box.append(row); };
    add("step " + Math.round(x0 + x / 1000 * (x1 - x0)).toLocaleString("en-US"));
    curves.forEach((curve, i) => { if (Math.abs(near[i][0] - x) < 15) add(curve.name + " " + text(value(near[i][1])) + (d.unit || "")); });
    line.setAttribute("x1", x / 10 + "%"); line.setAttribute("x2", x / 10 + "%");
    svg.append(line); plot.append(box);
    const left = svg.offsetLeft || area.left - plot.getBoundingClientRect().left, px = left + x / 1000 * area.width;
    box.style.left = Math.max(0, Math.min(px + 10, plot.clientWidth - box.offsetWidth)) + "px";
    if (px + 10 + box.offsetWidth > plot.clientWidth) box.style.left = Math.max(0, px - 10 - box.offsetWidth) + "px";
  });
}
}
addReadouts();
)js";
}

// The seven colours follow Okabe and Ito (2008), which are distinguishable with all common kinds of colour blindness; here they are
// darkened for the light background and lightened for the dark one until each has a contrast of at least 3 to 1. With eight shapes, colour
// and shape together repeat after 56 series.
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

// Elements.

std::string open_tag(const char* name, Attributes attributes) {
  std::string out = std::string("<") + name;
  for (const auto& [key, value] : attributes) {
    if (!value.empty()) out += std::string(" ") + key + "=\"" + escape_html(value) + "\"";
  }
  return out;
}

std::string whole_page(const std::string& title, const std::string& style, const std::string& body, const std::string& script) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         escape_html(title) + "</title>\n<style>" + style + "</style>\n</head>\n<body>\n" + body + "<script>" + script +
         "</script>\n</body>\n</html>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '&') out += "&amp;";
    else if (character == '<') out += "&lt;";
    else if (character == '>') out += "&gt;";
    else if (character == '"') out += "&quot;";
    else if (character == '\'') out += "&#39;";
    else if ((byte < 0x20 && character != '\n' && character != '\t') || byte == 0x7f) out += "\ufffd";
    else out += character;
  }
  return out;
}

std::string element(const char* name, Attributes attributes, const std::string& content) {
  return open_tag(name, attributes) + ">" + content + "</" + name + ">";
}

std::string element(const char* name, Attributes attributes) { return open_tag(name, attributes) + "/>"; }

std::string tiles(const std::vector<Tile>& list) {
  std::string out;
  for (const Tile& tile : list) {
    out += "<div class=\"tile\"><dt>" + escape_html(tile.label) + "</dt><dd>" + escape_html(tile.value) + "</dd>";
    if (!tile.note.empty()) out += "<dd class=\"note\">" + escape_html(tile.note) + "</dd>";
    out += "</div>";
  }
  return "<dl class=\"tiles\">" + out + "</dl>\n";
}

std::string section(const std::string& id, const std::string& heading, const std::string& intro, const std::string& content) {
  std::string out = "<section id=\"" + id + "\">\n<h2>" + escape_html(heading) + "</h2>\n";
  if (!intro.empty()) out += "<p class=\"intro\">" + escape_html(intro) + "</p>\n";
  return out + content + "</section>\n";
}

std::string scroll_box(const std::string& label, const std::string& content, const std::string& css_class) {
  return element("div", {{"class", css_class}, {"tabindex", "0"}, {"role", "region"}, {"aria-label", label}}, content);
}

std::string table(const Table& table, const std::string& label) {
  const auto number_class = [&](size_t column) { return std::string(table.columns[column].is_number ? "number" : ""); };
  std::string head, body;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    head += element("th", {{"scope", "col"}, {"class", number_class(i)}}, escape_html(table.columns[i].heading));
  }
  for (const auto& row : table.rows) {
    body += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      body += i == 0 ? element("th", {{"scope", "row"}, {"class", number_class(i)}}, row[i])
                     : element("td", {{"class", number_class(i)}}, row[i]);
    }
    body += "</tr>\n";
  }
  return scroll_box(label, "<table><thead><tr>" + head + "</tr></thead>\n<tbody>" + body + "</tbody></table>") + "\n";
}

std::string definitions(const std::vector<std::pair<std::string, std::string>>& list) {
  std::string out;
  for (const auto& [name, value] : list) {
    out += "<div><dt>" + escape_html(name) + "</dt>" +
           (value.empty() ? std::string("<dd class=\"none\">\u2013</dd>") : "<dd>" + escape_html(value) + "</dd>") + "</div>";
  }
  return "<dl class=\"definitions\">" + out + "</dl>\n";
}

std::string document(const std::string& title, const std::string& body, const std::string& script) {
  return whole_page(title, report_style(), body, report_script() + script);
}

std::string study_document(const std::string& title, const std::string& body) {
  return whole_page(title, concat(report_style(), study_style()), body, study_script());
}

}  // namespace cohort::report
