//! Diagrams.

use crate::common::{generate, usual};
use forebay_pipeline::{Kind, draw, replay};

#[test]
fn characters() {
    let drawn = |kind: Kind, columns| {
        let schedule = generate(kind, 2, kind.default_chunks(), 4);
        let timeline = replay(&schedule, &usual(&schedule).with_p2p(2)).expect("it ends");
        draw::text(&schedule, &timeline, columns)
    };
    let both = [Kind::OneFOneB, Kind::DualPipeV].map(|kind| drawn(kind, 100).expect("it fits"));
    insta::assert_snapshot!(both.join("\n"));
    assert_eq!(drawn(Kind::ZbV, 20), None);
}

#[test]
fn svg() {
    let schedule = generate(Kind::DualPipeV, 2, 2, 4);
    let timeline = replay(&schedule, &usual(&schedule).with_pair(Some(25))).expect("it ends");
    let drawn = draw::svg(&schedule, &timeline, "a <schedule> & more", 1);
    insta::assert_snapshot!(drawn);
    // Each work has a cell with its name.
    for item in schedule.orders().iter().flatten().flat_map(|i| i.works()) {
        assert!(drawn.contains(&format!("<title>{item}</title>")), "{item}");
    }
    assert_eq!(drawn.matches("<g>").count(), drawn.matches("</g>").count());
}
