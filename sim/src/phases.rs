//! The phases of a pipelined step, and what of the communication with experts each of them leaves exposed.
//!
//! ```text
//! stage 1    . F F F P P P P P B B B U          F forward, P forward and backward, B backward, U update
//!            └ fill ┘└ steady ┘└drain┘└ update
//! ```
//!
//! In the fill a stage goes forward only, in the drain backward only: there is less work to hide communication behind than between them.

use crate::kind::Kind;
use crate::log::{MAIN, Why};
use crate::passes::Work;
use crate::timeline::{RoleTimeline, Timeline};
use serde::Serialize;

/// One phase of a step; all is a mean of roles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// `fill`, until a stage first goes backward; `steady`, until it has gone forward for the last time; `drain`, until its last backward pass; `update`.
    pub phase: &'static str,
    /// Seconds that it takes.
    pub seconds: f64,
    /// Seconds in which a stage waits for others.
    pub bubble_s: f64,
    /// Seconds of communication with experts that computation waits for.
    pub exposed_ep_s: f64,
    /// All seconds of communication with experts.
    pub total_ep_s: f64,
}

impl Phase {
    /// The part of the communication with experts that is exposed, where there is any.
    pub fn exposed_share(&self) -> Option<f64> {
        (self.total_ep_s > 0.0).then(|| self.exposed_ep_s / self.total_ep_s)
    }
}

const NAMES: [&str; 4] = ["fill", "steady", "drain", "update"];

impl Timeline {
    /// The phases of the step; none where there is one stage, or no training step.
    pub fn phases(&self) -> Vec<Phase> {
        if self.roles.len() < 2 {
            return vec![];
        }
        let mut phases =
            NAMES.map(|phase| Phase { phase, seconds: 0.0, bubble_s: 0.0, exposed_ep_s: 0.0, total_ep_s: 0.0 });
        let roles = self.roles.len() as f64;
        for role in &self.roles {
            let bounds = self.bounds(role);
            let mut add = |begin: f64, end: f64, to: &dyn Fn(&mut Phase, f64)| {
                for (phase, bounds) in phases.iter_mut().zip(bounds.windows(2)) {
                    let inside = (end.min(bounds[1]) - begin.max(bounds[0])).max(0.0);
                    to(phase, inside / roles);
                }
            };
            add(0.0, self.end, &|phase, s| phase.seconds += s);
            // A stage that has come to its end waits for the last one.
            let ended =
                role.log.slices.iter().map(|s| s.end).chain(role.log.idle.iter().map(|i| i.end)).fold(0.0, f64::max);
            add(ended, self.end, &|phase, s| phase.bubble_s += s);
            for idle in &role.log.idle {
                match idle.why {
                    Why::Communication(Kind::Ep) => add(idle.begin, idle.end, &|phase, s| phase.exposed_ep_s += s),
                    Why::Stage => add(idle.begin, idle.end, &|phase, s| phase.bubble_s += s),
                    Why::Communication(_) | Why::Host | Why::Contention => {}
                }
            }
            for slice in &role.log.slices {
                let share = self.share(role, slice, Kind::Ep);
                if share > 0.0 {
                    let exposed = if slice.stream == MAIN { share } else { 0.0 };
                    add(slice.begin, slice.end, &|phase, s| {
                        phase.total_ep_s += share * s;
                        phase.exposed_ep_s += exposed * s;
                    });
                }
            }
        }
        phases.to_vec()
    }

    /// Where a role's phases begin and end.
    fn bounds(&self, role: &RoleTimeline) -> [f64; 5] {
        let of = |is: fn(Work) -> bool| {
            let passes = role.passes.iter().filter(move |pass| is(pass.work));
            passes
                .map(|pass| role.span(pass))
                .fold((f64::INFINITY, 0.0), |(a, b), (begin, end)| (begin.min(a), end.max(b)))
        };
        let backward =
            of(|work| matches!(work, Work::Pair | Work::Backward | Work::BackwardInput | Work::BackwardWeight));
        let forward = of(|work| matches!(work, Work::Forward | Work::Pair));
        let filled = backward.0.min(self.end);
        let drains = forward.1.max(filled);
        [0.0, filled, drains, backward.1.max(drains), self.end]
    }
}
