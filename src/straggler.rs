//! `--straggler`: a device that is slower than the others.

use crate::failure::Failure;
use crate::output::seconds;
use forebay_cost::Cluster;
use forebay_plan::Plan;
use forebay_sim::replay::Straggler;
use forebay_sim::{Options, simulate};

/// `FACTOR`, or `FACTOR@STAGE`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    factor: f64,
    stage: Option<u32>,
}

/// The largest factor: what takes longer stands still.
const MOST: f64 = 1e3;

impl std::str::FromStr for Slow {
    type Err = String;

    fn from_str(text: &str) -> Result<Slow, String> {
        let (factor, stage) = text.split_once('@').map_or((text, None), |(factor, stage)| (factor, Some(stage)));
        let factor = factor.trim().parse().ok().filter(|factor| (1.0..=MOST).contains(factor));
        let factor =
            factor.ok_or_else(|| format!("how many times as long its work takes is a number from 1 to {MOST}"))?;
        let whole = |stage: &str| stage.trim().parse().map_err(|_| "a stage is a whole number, from 0".to_string());
        Ok(Slow { factor, stage: stage.map(whole).transpose()? })
    }
}

/// Where the slow device is: in the stage that is named, else in the one where it costs the step most. With a sentence that says what it costs.
///
/// # Errors
/// A stage that there is not; as [`simulate`].
pub fn placed(slow: Slow, plan: &Plan, cluster: &Cluster, options: &Options) -> Result<(Straggler, String), Failure> {
    if cluster.measured.is_some() {
        return Err(Failure::Input(
            "--straggler is for devices of a cluster: ranks of a machine that was measured share its cores".into(),
        ));
    }
    let stages = plan.mesh.iter().find(|dim| dim.name == "pp").map_or(1, |dim| dim.size);
    let time = |straggler: Option<Straggler>| {
        let options = Options { straggler, without: false, ..options.clone() };
        simulate(plan, cluster, &options).map(|report| report.step_time_s).map_err(Failure::Input)
    };
    let candidates = match slow.stage {
        Some(stage) if stage >= stages => {
            let last = stages - 1;
            return Err(Failure::Input(format!(
                "--straggler is on stage {stage}, and the last stage is {last}\n  = help: stages are counted from 0"
            )));
        }
        Some(stage) => stage..stage + 1,
        None => 0..stages,
    };
    let alike = time(None)?;
    let mut worst: Option<(Straggler, f64)> = None;
    for stage in candidates {
        let straggler = Straggler { stage, factor: slow.factor };
        let step = time(Some(straggler))?;
        if worst.is_none_or(|(_, most)| step > most) {
            worst = Some((straggler, step));
        }
    }
    let (straggler, step) = worst.ok_or_else(|| Failure::Input("there is no stage".into()))?;
    let waits = if step > alike * (1.0 + 1e-6) { "since all wait for it" } else { "since nobody waits for it" };
    let told = format!(
        "one device of stage {} takes {} times as long for its work: {} a step instead of {} (+{:.1} %), {waits}",
        straggler.stage,
        straggler.factor,
        seconds(step),
        seconds(alike),
        100.0 * (step / alike - 1.0).max(0.0)
    );
    Ok((straggler, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_and_stages_are_read() {
        assert_eq!("1.2".parse(), Ok(Slow { factor: 1.2, stage: None }));
        assert_eq!("2@3".parse(), Ok(Slow { factor: 2.0, stage: Some(3) }));
        for wrong in ["", "0.5", "nan", "inf", "2@", "2@-1", "2@x", "1e9"] {
            assert!(wrong.parse::<Slow>().is_err(), "{wrong}");
        }
    }
}
