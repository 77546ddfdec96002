//! Robust least squares by steps of Gauss and Newton, as Levenberg and Marquardt damp them (Nocedal and Wright, Numerical Optimization, 2006, section 10.3), with weights that are set anew in each step.

use nalgebra::{DMatrix, DVector};

/// Errors below this count as if they were this large when they are weighed: the median does not see them.
const SMALL: f64 = 0.01;
/// By what a number is multiplied to see what it changes.
const TRIED: f64 = 1.03;
/// The part of the cost that a step must save.
const ENOUGH: f64 = 1e-5;
/// How long steps are, as multiples of what the quadratic says: large errors count less than its curvature has it, so that it is too careful.
const LENGTHS: [f64; 3] = [1.0, 2.0, 4.0];
/// How much of the diagonal is added to it where none of these helps, in turn, until a step does.
const DAMPING: [f64; 3] = [0.3, 3.0, 30.0];

/// A number: where it begins, and what makes sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Where it is.
    pub start: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

/// Errors as functions of numbers.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// What each error counts.
    pub weights: Vec<f64>,
    /// Errors that each number changes.
    pub touched: Vec<Vec<usize>>,
    /// The numbers.
    pub bounds: Vec<Bounds>,
    /// What it costs to be a factor of 1.25 away from where a fit began, as an error of one of the runs that the number touches; four times as much for twice as far in logarithms (a
    /// Gaussian prior).
    pub away: f64,
}

impl Problem {
    /// e / (1 + 2 e) of errors, weighed, and what numbers cost for being away. A place without an error costs as much as the largest.
    fn cost(&self, errors: &[Option<f64>], values: &[f64]) -> f64 {
        let of = |(e, weight): (&Option<f64>, &f64)| weight * e.map_or(0.5, |e| e.abs() / (1.0 + 2.0 * e.abs()));
        let away = values.iter().enumerate().map(|(i, value)| 0.5 * self.stiffness(i) * self.moved(i, *value).powi(2));
        errors.iter().zip(&self.weights).map(of).sum::<f64>() + away.sum::<f64>()
    }

    /// How far a number is from its start, in logarithms.
    fn moved(&self, number: usize, value: f64) -> f64 {
        (value / self.bounds[number].start).ln()
    }

    /// A number's least and largest value. (One that begins beyond its limits may stay where it is.)
    fn limits(&self, number: usize) -> (f64, f64) {
        let Bounds { start, least, most } = self.bounds[number];
        (least.min(start), most.max(start))
    }

    /// The second derivative of what a number costs for being away. (One that no error depends on stays where it is, whatever this is.)
    fn stiffness(&self, number: usize) -> f64 {
        let touched = &self.touched[number];
        let sum: f64 = touched.iter().map(|&at| self.weights[at]).sum();
        let mean = if touched.is_empty() { 1.0 } else { sum / touched.len() as f64 };
        2.0 * self.away * mean / 1.25f64.ln().powi(2)
    }
}

/// The numbers after so many steps, or when no step helps. `errors` are those of some places, with numbers of certain values; none where there is none.
pub(super) fn minimised(
    problem: &Problem,
    steps: usize,
    mut errors: impl FnMut(&[f64], &[usize]) -> Vec<Option<f64>>,
) -> Vec<f64> {
    let all: Vec<usize> = (0..problem.weights.len()).collect();
    let mut values: Vec<f64> = problem.bounds.iter().map(|b| b.start).collect();
    if steps == 0 || values.is_empty() {
        return values;
    }
    let mut now = errors(&values, &all);
    let mut cost = problem.cost(&now, &values);
    for _ in 0..steps {
        let slopes = slopes(problem, &values, &now, &mut errors);
        let (mut curvature, mut gradient) = model(problem, &values, &now, &slopes);
        hold(problem, &values, &mut curvature, &mut gradient);
        let step = |damping: f64, length: f64| -> Option<Vec<f64>> {
            let mut damped = curvature.clone();
            (0..values.len()).for_each(|i| damped[(i, i)] *= 1.0 + damping);
            let step = damped.cholesky()?.solve(&gradient);
            let moved = |(number, (value, by)): (usize, (&f64, &f64))| {
                let (least, most) = problem.limits(number);
                (value * (-length * by).exp()).clamp(least, most)
            };
            Some(values.iter().zip(step.iter()).enumerate().map(moved).collect())
        };
        let mut tried = |damping: f64, length: f64| {
            let tried = step(damping, length)?;
            let then = errors(&tried, &all);
            let cost_then = problem.cost(&then, &tried);
            (cost_then < cost * (1.0 - ENOUGH)).then_some((tried, then, cost_then))
        };
        let longest = LENGTHS.iter().filter_map(|&length| tried(0.0, length)).min_by(|a, b| a.2.total_cmp(&b.2));
        let better = longest.or_else(|| DAMPING.iter().find_map(|&damping| tried(damping, 1.0)));
        match better {
            Some(better) => (values, now, cost) = better,
            None => break,
        }
    }
    values
}

/// Takes numbers out of a step that are at a limit beyond which they would go: the others' steps would count on theirs.
fn hold(problem: &Problem, values: &[f64], curvature: &mut DMatrix<f64>, gradient: &mut DVector<f64>) {
    for (number, &value) in values.iter().enumerate() {
        let (least, most) = problem.limits(number);
        if (value >= most && gradient[number] < 0.0) || (value <= least && gradient[number] > 0.0) {
            curvature.row_mut(number).fill(0.0);
            curvature.column_mut(number).fill(0.0);
            curvature[(number, number)] = 1.0;
            gradient[number] = 0.0;
        }
    }
}

/// For each number the errors that it changes, with what each changes by for its logarithm.
fn slopes(
    problem: &Problem,
    values: &[f64],
    now: &[Option<f64>],
    errors: &mut impl FnMut(&[f64], &[usize]) -> Vec<Option<f64>>,
) -> Vec<Vec<(usize, f64)>> {
    let of = |(number, touched): (usize, &Vec<usize>)| {
        let mut tried = values.to_vec();
        let factor = if tried[number] * TRIED > problem.limits(number).1 { 1.0 / TRIED } else { TRIED };
        tried[number] *= factor;
        let then = errors(&tried, touched);
        let slope = |(&at, then): (&usize, Option<f64>)| Some((at, (then? - now[at]?) / factor.ln()));
        touched.iter().zip(then).filter_map(slope).collect()
    };
    problem.touched.iter().enumerate().map(of).collect()
}

/// The quadratic that has the value and the slope of the cost where numbers are: its curvature, and its gradient.
fn model(
    problem: &Problem,
    values: &[f64],
    now: &[Option<f64>],
    slopes: &[Vec<(usize, f64)>],
) -> (DMatrix<f64>, DVector<f64>) {
    let n = values.len();
    let mut jacobian = DMatrix::zeros(now.len(), n);
    for (number, slopes) in slopes.iter().enumerate() {
        slopes.iter().for_each(|&(at, slope)| jacobian[(at, number)] = slope);
    }
    // So that half of its square times this has the cost's slope.
    let weight = |(e, weight): (&Option<f64>, &f64)| {
        let e = e.map_or(0.0, f64::abs);
        weight / ((1.0 + 2.0 * e).powi(2) * e.max(SMALL))
    };
    let weights: Vec<f64> = now.iter().zip(&problem.weights).map(weight).collect();
    let error = |(e, weight): (&Option<f64>, &f64)| e.unwrap_or(0.0) * weight;
    let pulls = DVector::from_iterator(now.len(), now.iter().zip(&weights).map(error));
    let mut gradient = jacobian.transpose() * pulls;
    let mut weighed = jacobian.clone();
    weighed.row_iter_mut().zip(&weights).for_each(|(mut row, weight)| row *= *weight);
    let mut curvature = jacobian.transpose() * weighed;
    for number in 0..n {
        curvature[(number, number)] += problem.stiffness(number);
        gradient[number] += problem.stiffness(number) * problem.moved(number, values[number]);
    }
    (curvature, gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two numbers that trade against each other, of which moving one at a time would end between them: what was made of 1.5 and 0.6 is found to be.
    #[test]
    fn both_of_two_move() {
        let bounds = vec![Bounds { start: 1.0, least: 0.1, most: 10.0 }; 2];
        let problem = Problem { weights: vec![1.0; 60], touched: vec![(0..60).collect(); 2], bounds, away: 0.05 };
        let time = |at: usize, of: [f64; 2]| {
            let share = (at % 20) as f64 / 19.0;
            share / of[0] + (1.0 - share) / of[1]
        };
        let errors = |values: &[f64], of: &[usize]| -> Vec<Option<f64>> {
            let error = |&at: &usize| Some((time(at, [values[0], values[1]]) / time(at, [1.5, 0.6])).ln());
            of.iter().map(error).collect()
        };
        let found = minimised(&problem, 20, errors);
        // (What being away costs holds them back a little.)
        assert!((found[0] / 1.5).ln().abs() < 0.02 && (found[1] / 0.6).ln().abs() < 0.02, "{found:?}");
    }

    /// Limits hold; what nothing depends on stays; a place that never has an error moves nothing.
    #[test]
    fn numbers_stay_within_limits() {
        let bounds = vec![Bounds { start: 1.0, least: 0.5, most: 1.1 }, Bounds { start: 3.0, least: 1.0, most: 5.0 }];
        let problem = Problem { weights: vec![0.5; 2], touched: vec![vec![0, 1], vec![]], bounds, away: 0.05 };
        let errors = |values: &[f64], of: &[usize]| -> Vec<Option<f64>> {
            of.iter().map(|&at| (at == 0).then(|| (values[0] / 1.3).ln())).collect()
        };
        assert_eq!(minimised(&problem, 50, errors), [1.1, 3.0]);
        assert_eq!(minimised(&problem, 0, errors), [1.0, 3.0]);
    }

    /// Sums of two numbers, of which the first may not become as large as it should: the second makes up for it, as far as it can by itself, in few steps.
    #[test]
    fn others_do_not_count_on_what_is_held() {
        let bounds = vec![Bounds { start: 1.0, least: 0.5, most: 1.1 }, Bounds { start: 1.0, least: 0.1, most: 10.0 }];
        let problem = Problem { weights: vec![1.0; 60], touched: vec![(0..60).collect(); 2], bounds, away: 0.05 };
        let at = |number: usize, of: [f64; 2]| {
            let share = 0.3 + 0.4 * (number % 20) as f64 / 19.0;
            share * of[0] + (1.0 - share) * of[1]
        };
        let errors = |values: &[f64], of: &[usize]| -> Vec<Option<f64>> {
            of.iter().map(|&n| Some((at(n, [values[0], values[1]]) / at(n, [3.0, 0.5])).ln())).collect()
        };
        let found = minimised(&problem, 8, errors);
        let cost = |second: f64| {
            let values = [1.1, second];
            problem.cost(&errors(&values, &(0..60).collect::<Vec<_>>()), &values)
        };
        let best =
            (1000..3000).map(|n| f64::from(n) / 1000.0).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).expect("some");
        assert!(found[0] == 1.1 && (found[1] / best).ln().abs() < 0.003, "{found:?}, {best}");
    }

    /// A step that would leave a place without an error is none.
    #[test]
    fn nothing_is_gained_by_losing_errors() {
        let bounds = vec![Bounds { start: 1.0, least: 0.1, most: 10.0 }];
        let problem = Problem { weights: vec![1.0], touched: vec![vec![0]], bounds, away: 0.05 };
        let errors = |values: &[f64], of: &[usize]| -> Vec<Option<f64>> {
            of.iter().map(|_| (values[0] < 1.2).then(|| (values[0] / 3.0).ln())).collect()
        };
        assert!(minimised(&problem, 8, errors)[0] < 1.2);
    }
}
