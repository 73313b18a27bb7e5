//! How the page looks: on a wide and on a narrow screen, light and dark, and on paper.

pub(super) const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#1f2328;--faint:#515963;--line:#d0d7de;--soft:#f3f5f8;--link:#0a58ca;\
--good:#116329;--goodback:#dcf3e1;--note:#7a4b00;--noteback:#fdf0d0;--bad:#a40e1b;--badback:#fde2e2;--plain:#1f4f96;--plainback:#e0edfd}\
@media screen and (prefers-color-scheme:dark){:root{--back:#0f1318;--text:#e6edf3;--faint:#a9b4c0;--line:#39424d;--soft:#1a2028;\
--link:#79b0ff;--good:#7ee2a0;--goodback:#12351e;--note:#f5c563;--noteback:#3b2c08;--bad:#ff9b94;--badback:#4a1518;--plain:#a5cbff;\
--plainback:#16305a}}\
*{box-sizing:border-box}\
body{margin:0 auto;max-width:1180px;padding:12px 20px 60px;background:var(--back);color:var(--text);\
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
h1{font-size:1.6em;margin:.6em 0 .2em}h2{font-size:1.25em;margin:2em 0 .4em;border-bottom:1px solid var(--line);padding-bottom:.2em}\
h3{font-size:1.02em;margin:1.4em 0 .3em}\
a{color:var(--link)}p{margin:.4em 0;max-width:80ch}code,pre,.mono{font-family:ui-monospace,Menlo,'DejaVu Sans Mono',monospace;font-size:.87em}\
.faint{color:var(--faint)}.wide{overflow-x:auto;margin:.6em 0}\
table{border-collapse:collapse;font-size:.9em}th,td{border:1px solid var(--line);padding:3px 8px;text-align:left;vertical-align:top}\
th{background:var(--soft);font-weight:600}td.mono{overflow-wrap:anywhere}\
.matrix td{white-space:nowrap}.matrix th[scope=row],.cases th[scope=row]{position:sticky;left:0;z-index:1}\
.cases th[scope=row]{font-weight:400;min-width:15em;max-width:26em;overflow-wrap:anywhere}\
.w{display:inline-block;border-radius:4px;padding:0 6px;font-size:.92em;white-space:nowrap;text-decoration:none;color:var(--text)}\
a.w:hover{text-decoration:underline}\
.good{color:var(--good);background:var(--goodback)}.note{color:var(--note);background:var(--noteback)}\
.bad{color:var(--bad);background:var(--badback);font-weight:700}.plain{color:var(--plain);background:var(--plainback)}\
.none{color:var(--faint);background:var(--soft)}\
.backends td{min-width:7em}.backends td:nth-child(n+5){min-width:15em}\
.cases td .w{margin:1px 2px 1px 0}\
details.cell{border:1px solid var(--line);border-radius:6px;margin:.4em 0;padding:0 10px}\
details.cell>summary{cursor:pointer;padding:5px 0;overflow-wrap:anywhere}\
details.cell[open]>summary{border-bottom:1px solid var(--line);margin-bottom:.4em}\
.body{padding-bottom:8px;scroll-margin-top:4em}.finding{white-space:pre-wrap;overflow-wrap:anywhere}\
.evidence{width:100%}.evidence th{width:16em;font-weight:400}.evidence td{overflow-wrap:anywhere}\
pre{overflow-x:auto;background:var(--soft);padding:8px 10px;border-radius:6px;margin:.5em 0}\
svg.tl{display:block;max-width:100%;height:auto;min-width:720px;margin:.4em 0}\
.facts{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:.6em 0}.facts dt{color:var(--faint)}.facts dd{margin:0;overflow-wrap:anywhere}\
nav a{margin-right:1em;white-space:nowrap}\
@media(max-width:600px){body{padding:8px 10px 40px;font-size:14px}.evidence th{width:9em}.cases th[scope=row]{min-width:9em;max-width:11em;position:static}}\
@media print{body{max-width:none;padding:0;font-size:10pt}nav{display:none}a{color:inherit;text-decoration:none}.wide{overflow:visible}\
table{font-size:7.5pt}th,td{padding:1px 4px}.matrix th[scope=row],.cases th[scope=row]{position:static}.cases th[scope=row]{min-width:0}\
details.cell:not([open]){display:none}tr,svg,summary{break-inside:avoid}summary{break-after:avoid}h2,h3{break-after:avoid}svg.tl{min-width:0;max-width:100%}\
.w{-webkit-print-color-adjust:exact;print-color-adjust:exact}pre{white-space:pre-wrap}}\
";
