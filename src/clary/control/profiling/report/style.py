"""The style sheet of a report: light and dark, for screen and paper."""

SHEET = """
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1b1f24;--soft:#5c6570;--line:#dfe2e6;--grid:#eceef0;
--blue:#2563b8;--teal:#0f8a7e;--amber:#b45309;--amber-back:#fdf3e2;--green:#1f7a4d;--green-back:#e8f5ee;--grey-back:#f0f1f3;
--s0:#2563b8;--s1:#c2410c;--s2:#0f8a7e;--s3:#9333ea;--s4:#a16207;--s5:#be185d;--s6:#4d7c0f;--s7:#475569;--s8:#67c5e0;
--s9:#c9b8a0}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1b1f25;--ink:#e7eaee;--soft:#9aa4af;--line:#2d333b;
--grid:#262b32;--blue:#6ea8fe;--teal:#4fd1c5;--amber:#fbbf6b;--amber-back:#382a12;--green:#6fcf97;--green-back:#163024;
--grey-back:#252a31;--s0:#6ea8fe;--s1:#fb923c;--s2:#4fd1c5;--s3:#c084fc;--s4:#facc15;--s5:#f472b6;--s6:#a3e635;
--s7:#94a3b8;--s8:#155e75;--s9:#6b5d4f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased}
main{max-width:1080px;margin:0 auto;padding:40px 24px 72px}
header{border-bottom:1px solid var(--line);padding-bottom:20px}
h1{font-size:27px;line-height:1.25;letter-spacing:-.01em;margin:4px 0 8px;overflow-wrap:anywhere}
h2{font-size:19px;margin:44px 0 4px;letter-spacing:-.005em}
h3{font-size:15px;margin:0}
p{margin:6px 0;max-width:78ch;overflow-wrap:anywhere}
.kicker{color:var(--soft);font-size:12.5px;letter-spacing:.06em;text-transform:uppercase;margin:0}
.lead{font-size:16.5px;margin-top:18px}
.soft{color:var(--soft)}.small{font-size:13px}
a{color:var(--blue)}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:14px;font-size:13.5px}
nav a{text-decoration:none}nav a:hover{text-decoration:underline}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:1px;background:var(--line);
border:1px solid var(--line);border-radius:10px;overflow:hidden;margin-top:20px}
.facts div{background:var(--card);padding:12px 14px}
.facts b{display:block;font-size:18px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.facts span{color:var(--soft);font-size:12.5px}
.chip{display:inline-block;border-radius:99px;padding:1px 10px;font-size:12.5px;font-weight:600;white-space:nowrap}
.issue{background:var(--amber-back);color:var(--amber)}.fine{background:var(--green-back);color:var(--green)}
.none{background:var(--grey-back);color:var(--soft)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;margin-top:12px}
.card.fires{border-left:4px solid var(--amber)}
.head{display:flex;flex-wrap:wrap;align-items:center;gap:6px 12px;justify-content:space-between}
.row+.row{border-top:1px solid var(--grid);margin-top:12px;padding-top:12px}
.row details{margin-top:2px}
.advice{border-left:2px solid var(--amber);padding-left:12px;margin-top:10px}
ul{margin:8px 0;padding-left:20px}li{overflow-wrap:anywhere}
details{margin-top:8px;font-size:13.5px}summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums;margin-top:10px}
th{color:var(--soft);font-weight:500;text-align:right;padding:5px 10px;border-bottom:1px solid var(--line);
white-space:nowrap}
td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}td.wide{white-space:normal;text-align:left}
tr:last-child td{border-bottom:0}
code{font:13px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr));gap:18px 26px;margin-top:12px}
figure{margin:0}figcaption{display:flex;justify-content:space-between;gap:10px;font-size:13px;margin-bottom:2px}
figcaption b{font-weight:600}figcaption span{color:var(--soft);font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:10.5px;font-family:inherit;
font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}.mark{stroke:var(--soft);stroke-dasharray:2 3;stroke-opacity:.6}
.key{display:inline-flex;align-items:center;gap:5px;margin-right:14px;font-size:12.5px;color:var(--soft)}
.key i{width:10px;height:10px;border-radius:2px;display:inline-block}
.f0{fill:var(--s0)}.f1{fill:var(--s1)}.f2{fill:var(--s2)}.f3{fill:var(--s3)}.f4{fill:var(--s4)}.f5{fill:var(--s5)}
.f6{fill:var(--s6)}.f7{fill:var(--s7)}.f8{fill:var(--s8)}.f9{fill:var(--s9)}
.b0{background:var(--s0)}.b1{background:var(--s1)}.b2{background:var(--s2)}.b3{background:var(--s3)}
.b4{background:var(--s4)}.b5{background:var(--s5)}.b6{background:var(--s6)}.b7{background:var(--s7)}
.b8{background:var(--s8)}.b9{background:var(--s9)}
.l0{stroke:var(--s0)}.l1{stroke:var(--s1)}.l2{stroke:var(--s2)}.l3{stroke:var(--s3)}.l4{stroke:var(--s4)}
.l5{stroke:var(--s5)}.l6{stroke:var(--s6)}.l7{stroke:var(--s7)}.l8{stroke:var(--s8)}
.l9{stroke:var(--s9)}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}.band{fill-opacity:.16;stroke:none}
.rest{fill:var(--grid)}
footer{margin-top:56px;border-top:1px solid var(--line);padding-top:14px;color:var(--soft);font-size:13px}
@media print{body{background:#fff}.card,figure{break-inside:avoid}details{display:none}main{padding:0}}
"""
NUM_COLOURS = 10
