use super::*;
use crate::program::markup::tests::elements;
use crate::timeline::{Mark, Span, SpanKind};

fn span(lane: &str, from_ms: f64, until_ms: f64, kind: SpanKind) -> Span {
    Span { lane: lane.to_owned(), from_ms, until_ms, kind, label: "a few words".to_owned() }
}

fn mark(lane: &str, at_ms: f64, kind: MarkKind) -> Mark {
    Mark { lane: lane.to_owned(), at_ms, kind, label: format!("{kind:?} here") }
}

/// Every kind of span and of mark.
fn everything() -> Timeline {
    let mut timeline = Timeline {
        title: "everything".to_owned(),
        lanes: ["A", "B", "store"].map(ToOwned::to_owned).to_vec(),
        spans: vec![
            span("A", 0.0, 900.0, SpanKind::Held),
            span("A", 50.0, 1_000.0, SpanKind::Stopped),
            span("store", 200.0, 400.0, SpanKind::Down),
        ],
        marks: Vec::new(),
    };
    for (n, kind) in (0_u32..).zip(shapes::MARKS) {
        timeline.marks.push(mark("B", 700.0 + f64::from(n) * 7.0, kind));
    }
    timeline
}

/// Class, and the attributes.
fn with_class<'a>(found: &'a [(String, Vec<(String, String)>)], class: &str) -> Vec<&'a str> {
    let has = |(name, attributes): &&(String, Vec<(String, String)>)| {
        let classes = attributes.iter().find(|(key, _)| key == "class");
        name != "text" && classes.is_some_and(|(_, value)| value.split(' ').any(|one| one == class))
    };
    found.iter().filter(has).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn every_kind_is_drawn_and_has_a_form_of_its_own() {
    let timeline = everything();
    let svg = render(&timeline, "t", Styled::Own);
    let found = elements(&svg, &[]);
    for kind in shapes::MARKS {
        // Once on its lane and once in the legend; some have lines across as well, some have two strokes.
        assert!(with_class(&found, shapes::mark_class(kind)).len() >= 2, "{kind:?} in {svg}");
        assert!(svg.contains(shapes::mark_words(kind)) || kind == MarkKind::Committed, "{kind:?} in the legend");
        let without =
            Timeline { marks: timeline.marks.iter().filter(|m| m.kind != kind).cloned().collect(), ..timeline.clone() };
        let without = render(&without, "t", Styled::Own);
        assert!(with_class(&elements(&without, &[]), shapes::mark_class(kind)).is_empty(), "{kind:?} is not there");
    }
    for kind in shapes::SPANS {
        assert_eq!(with_class(&found, shapes::span_class(kind)).len(), 2, "{kind:?} and its legend");
    }
    let forms: std::collections::BTreeSet<String> =
        shapes::MARKS.iter().map(|kind| shapes::form(*kind, 0.0, 0.0).replace(shapes::mark_class(*kind), "")).collect();
    assert_eq!(forms.len(), shapes::MARKS.len(), "told apart without colour");
    assert!(svg.contains("fill=\"url(#t-hatch)\"") && svg.contains("<pattern id=\"t-hatch\""), "stopped is hatched");
}

#[test]
fn two_holders_have_a_band_if_and_only_if_their_spans_overlap() {
    let with = |from: f64| Timeline {
        lanes: vec!["A".to_owned(), "B".to_owned()],
        spans: vec![span("A", 0.0, 500.0, SpanKind::Held), span("B", from, 900.0, SpanKind::Held)],
        ..Timeline::default()
    };
    let [apart, together] = [500.0, 450.0].map(|from| render(&with(from), "t", Styled::Own));
    assert!(!apart.contains("two holders") && with_class(&elements(&apart, &[]), "two").is_empty());
    assert!(together.contains(">two holders for 50.0 ms<"), "{together}");
    assert_eq!(with_class(&elements(&together, &[]), "two"), ["rect"]);
}

#[test]
fn hostile_words_are_escaped_everywhere() {
    let evil = "</title><script>alert(\"1\")</script>&\u{1b}'";
    let mut timeline = everything();
    timeline.title = evil.to_owned();
    timeline.lanes = vec![evil.to_owned()];
    for span in &mut timeline.spans {
        span.lane = evil.to_owned();
        span.label = evil.to_owned();
    }
    for mark in &mut timeline.marks {
        mark.label = evil.to_owned();
    }
    let svg = render(&timeline, "t", Styled::Own);
    let found = elements(&svg, &[]);
    assert!(found.iter().all(|(name, _)| name != "script"), "{svg}");
    assert!(svg.contains("&lt;script&gt;"));
}

#[test]
fn it_stands_alone_says_what_it_shows_and_is_the_same_every_time() {
    let timeline = everything();
    let svg = render(&timeline, "t", Styled::Own);
    assert_eq!(svg, render(&timeline, "t", Styled::Own));
    assert!(svg.contains("<title id=\"t-title\">everything</title>") && svg.contains("role=\"img\""));
    assert!(svg.contains("StaleCommitted here") && svg.contains("<desc id=\"t-desc\">"));
    assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("class=\"back\""));
    for outside in ["href", "src=", "@import", "<script", "<image"] {
        assert!(!svg.contains(outside), "{outside}");
    }
    let inline = render(&timeline, "t", Styled::Around);
    assert!(!inline.contains("<style>") && inline.len() < svg.len());
}

#[test]
fn an_empty_scene_and_strange_numbers_still_make_a_picture() {
    elements(&render(&Timeline::default(), "t", Styled::Own), &[]);
    let timeline = Timeline {
        spans: vec![span("A", 10.0, -1e300, SpanKind::Held), span("A", f64::MIN_POSITIVE, 1e300, SpanKind::Down)],
        marks: vec![mark("B", -5.0, MarkKind::Note), mark("B", -5.0, MarkKind::Fault)],
        ..Timeline::default()
    };
    let svg = render(&timeline, "t", Styled::Own);
    elements(&svg, &[]);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}
