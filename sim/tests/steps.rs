//! Steps of plain PyTorch on one H100 that were measured (`sim/measure/steps.py` made the table): the bytes of a logit in the loss were measured by
//! themselves, and `vector_passes` of what no profile knows was chosen by these runs.

use forebay_cost::known::clusters;
use forebay_sim::validate::summary::Summary;
use forebay_sim::validate::{predict, runs};

fn predicted() -> Summary {
    let runs::Runs { runs, bad, unknown } = runs::read(include_str!("steps_h100.csv")).expect("a table");
    assert_eq!((bad, unknown), (vec![], vec![]));
    let summary = Summary::new(predict(&runs, &clusters(), 2));
    assert_eq!(summary.skipped, []);
    assert!(summary.rows.len() >= 23, "{}", summary.rows.len());
    summary
}

/// Models of 0.13 to 2.4 billion parameters, rows of 1,024 to 16,384 tokens, with and without recomputation: time, and what PyTorch had allocated at most.
#[test]
fn steps_take_what_is_predicted() {
    let of = &predicted().by_system["steps"];
    let (median, most) = of.memory.expect("it was measured");
    println!("time {:.3} / {:.3}, memory {median:.3} / {most:.3}", of.median_abs_error, of.p90_abs_error);
    assert!(of.median_abs_error < 0.03 && of.p90_abs_error < 0.05, "{of:?}");
    assert!(median < 0.05 && most < 0.06, "{of:?}");
}

/// A vocabulary whose rows begin at odd addresses costs a quarter of the step.
#[test]
fn an_odd_vocabulary_costs_what_it_did() {
    let rows = predicted().rows;
    let of = |id: &str| rows.iter().find(|row| row.id == id).expect("it is there");
    let (odd, even) = (of("steps-17"), of("steps-18"));
    let (measured, predicted) = (odd.measured_s / even.measured_s, odd.predicted_s / even.predicted_s);
    assert!(measured > 1.2 && (predicted / measured - 1.0).abs() < 0.03, "{predicted} is not {measured}");
}
