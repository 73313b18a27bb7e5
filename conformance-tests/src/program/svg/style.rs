//! Colours, for light and dark surroundings.

/// The rules for every picture in a document. `{` and `}` only as CSS uses them: nothing in it depends on a report.
pub(crate) const STYLE: &str = "\
.tl{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
.tl .back{fill:#fff;stroke:#d0d7de}\
.tl .even{fill:#f3f5f8}\
.tl text{fill:#1f2328;font-size:12px}\
.tl .title{font-size:15px;font-weight:600}\
.tl .lane{font-size:13px;font-weight:600}\
.tl .small{font-size:11px;fill:#515963}\
.tl .line{stroke:#8c96a1;fill:none}\
.tl .lead{stroke:#b3bbc4;fill:none}\
.tl .dots{stroke-dasharray:1.5 3}\
.tl .dash{stroke-dasharray:5 3}\
.tl .held{fill:#b6d4fb;stroke:#1f5fbf}\
.tl .stopped{stroke:#57606a}\
.tl .hatch{stroke:#57606a;stroke-width:1.4}\
.tl .hatched{fill:#eceff2}\
.tl .down{fill:#c3c9d0;stroke:#57606a}\
.tl text.onstopped{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}\
.tl text.label{paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round}\
.tl .shaded text.label{stroke:#f3f5f8}\
.tl .granted{fill:#1f5fbf;stroke:#1f5fbf}\
.tl .released{fill:#fff;stroke:#1f5fbf;stroke-width:2}\
.tl .lost{fill:none;stroke:#8a5200;stroke-width:2.6}\
.tl .sealed{fill:#7a3fc4;stroke:#7a3fc4}\
.tl .committed{fill:#1a7f37;stroke:#1a7f37}\
.tl .refused{fill:#fff;stroke:#8a5200;stroke-width:2.4}\
.tl .stale{fill:#cf1322;stroke:#cf1322}\
.tl .fault{fill:#a3005c;stroke:#a3005c}\
.tl .note{fill:#6b7580;stroke:#6b7580}\
.tl .two{fill:#cf1322;fill-opacity:.16;stroke:#cf1322}\
.tl .loud{fill:none;stroke-width:1.3}\
.tl text.bad{fill:#b30d1a;font-weight:700}\
.tl text.strong{font-weight:700}\
@media screen and (prefers-color-scheme:dark){\
.tl .back{fill:#14181d;stroke:#3a424c}\
.tl .even{fill:#1c222a}\
.tl text{fill:#e6edf3}\
.tl .small{fill:#a9b4c0}\
.tl .line{stroke:#7d8894}\
.tl .lead{stroke:#56606b}\
.tl .held{fill:#1b3f70;stroke:#79b0ff}\
.tl .stopped{stroke:#a9b4c0}\
.tl .hatch{stroke:#8b96a2}\
.tl .hatched{fill:#2a313a}\
.tl .down{fill:#4a535d;stroke:#a9b4c0}\
.tl text.onstopped,.tl text.label{stroke:#14181d}\
.tl .shaded text.label{stroke:#1c222a}\
.tl .granted{fill:#79b0ff;stroke:#79b0ff}\
.tl .released{fill:#14181d;stroke:#79b0ff}\
.tl .lost{stroke:#f0a43a}\
.tl .sealed{fill:#c297ff;stroke:#c297ff}\
.tl .committed{fill:#4cc764;stroke:#4cc764}\
.tl .refused{fill:#14181d;stroke:#f0a43a}\
.tl .stale{fill:#ff6b62;stroke:#ff6b62}\
.tl .fault{fill:#ff7eb6;stroke:#ff7eb6}\
.tl .note{fill:#98a3af;stroke:#98a3af}\
.tl .two{fill:#ff6b62;stroke:#ff6b62}\
.tl .loud{fill:none}\
.tl text.bad{fill:#ff8f87}\
}";
