//! Steps of plain PyTorch on one H100 that were measured (`sim/measure/steps.py` made the table): the bytes of a logit in the loss were measured by
//! themselves, and `vector_passes` of what no profile knows was chosen by these runs.

use forebay_cost::known::clusters;
use forebay_sim::validate::{Compared, Row, predict, runs};

fn predicted() -> Vec<Row> {
    let runs::Runs { runs, bad, unknown } = runs::read(include_str!("steps_h100.csv")).expect("a table");
    assert_eq!((bad, unknown), (vec![], vec![]));
    let Compared { rows, skipped, .. } = predict(&runs, &clusters(), 2);
    assert_eq!(skipped, []);
    assert!(rows.len() >= 23, "{}", rows.len());
    rows
}

/// The median and the 90th percentile of errors without their signs.
fn of_errors(errors: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
    sizes.sort_by(f64::total_cmp);
    (sizes[sizes.len() / 2], sizes[sizes.len() * 9 / 10])
}

/// Models of 0.13 to 2.4 billion parameters, rows of 1,024 to 16,384 tokens, with and without recomputation.
#[test]
fn steps_take_as_long_as_predicted() {
    let (median, most) = of_errors(predicted().iter().map(|row| row.error));
    println!("time: median {median:.3}, 90 % below {most:.3}");
    assert!(median < 0.03 && most < 0.05, "{median} {most}");
}

/// What PyTorch had allocated at most.
#[test]
fn steps_take_as_much_memory_as_predicted() {
    let error = |row: &Row| row.predicted_mem_gb / row.measured_mem_gb.expect("it is measured") - 1.0;
    let (median, most) = of_errors(predicted().iter().map(error));
    println!("memory: median {median:.3}, 90 % below {most:.3}");
    assert!(median < 0.05 && most < 0.06, "{median} {most}");
}

/// A vocabulary whose rows begin at odd addresses costs a quarter of the step.
#[test]
fn an_odd_vocabulary_costs_what_it_did() {
    let rows = predicted();
    let of = |id: &str| rows.iter().find(|row| row.id == id).expect("it is there");
    let (odd, even) = (of("steps-17"), of("steps-18"));
    let (measured, predicted) = (odd.measured_s / even.measured_s, odd.predicted_s / even.predicted_s);
    assert!(measured > 1.2 && (predicted / measured - 1.0).abs() < 0.03, "{predicted} is not {measured}");
}
