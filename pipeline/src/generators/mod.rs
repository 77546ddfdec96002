//! The published schedules, by their published rules.

mod dualpipe;
mod gpipe;
mod interleaved;
mod interleaved_zb;
mod one_f_one_b;
mod stage;
mod v_pattern;
mod zb_h;
mod zb_v;

use crate::{Item, Layout, Placement, Schedule, ScheduleError, Size};
use stage::Stage;

/// A published schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
    GPipe,
    /// One forward, one backward (Narayanan et al., arXiv 2006.09503).
    OneFOneB,
    /// 1F1B on several chunks a stage (Narayanan et al., arXiv 2104.04473).
    Interleaved,
    /// The same with one more forward in the warm-up, so that a forward and a backward of the steady state do not need each other and run as a pair
    /// (Megatron-LM's and MindSpeed's overlap of experts' communication).
    InterleavedOverlap,
    /// Zero bubble at the memory of 1F1B (Qi et al., arXiv 2401.10241).
    ZbH1,
    /// Zero bubble at twice the memory of 1F1B (same).
    ZbH2,
    /// Zero bubble on the V placement, at the memory of 1F1B (same, section 6).
    ZbV,
    /// Half the memory of 1F1B on the V placement (Qi et al., arXiv 2405.15362).
    VHalf,
    /// The least memory of a repeating pattern on the V placement: a third (same).
    VMin,
    /// Interleaved 1F1B with the backward for the weights moved behind (PyTorch's interleaved zero bubble).
    InterleavedZb,
    /// Both directions at once, with pairs (DeepSeek, arXiv 2412.19437).
    DualPipe,
    /// DualPipe cut in half, on the V placement (DeepSeek).
    DualPipeV,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 12] = [
        Kind::GPipe,
        Kind::OneFOneB,
        Kind::Interleaved,
        Kind::InterleavedOverlap,
        Kind::ZbH1,
        Kind::ZbH2,
        Kind::ZbV,
        Kind::VHalf,
        Kind::VMin,
        Kind::InterleavedZb,
        Kind::DualPipe,
        Kind::DualPipeV,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::GPipe => "gpipe",
            Kind::OneFOneB => "1f1b",
            Kind::Interleaved => "vpp",
            Kind::InterleavedOverlap => "vpp-overlap",
            Kind::ZbH1 => "zb-h1",
            Kind::ZbH2 => "zb-h2",
            Kind::ZbV => "zb-v",
            Kind::VHalf => "v-half",
            Kind::VMin => "v-min",
            Kind::InterleavedZb => "zb-vpp",
            Kind::DualPipe => "dualpipe",
            Kind::DualPipeV => "dualpipev",
        }
    }

    /// Where it places layer groups.
    pub fn placement(self) -> Placement {
        match self {
            Kind::GPipe | Kind::OneFOneB | Kind::ZbH1 | Kind::ZbH2 => Placement::Blocked,
            Kind::Interleaved | Kind::InterleavedOverlap | Kind::InterleavedZb => Placement::Interleaved,
            Kind::ZbV | Kind::VHalf | Kind::VMin | Kind::DualPipeV => Placement::Wave,
            Kind::DualPipe => Placement::TwoWay,
        }
    }

    /// Does it pair forward with backward passes, where there are micro-batches enough?
    pub fn has_pairs(self) -> bool {
        matches!(self, Kind::InterleavedOverlap | Kind::DualPipe | Kind::DualPipeV)
    }

    /// The chunks a stage that it has by itself.
    pub fn default_chunks(self) -> u32 {
        match self.placement() {
            Placement::Blocked => 1,
            Placement::Interleaved | Placement::Wave | Placement::TwoWay => 2,
        }
    }

    /// The schedule of that size.
    ///
    /// # Errors
    /// The kind does not exist at that size.
    pub fn generate(self, size: Size) -> Result<Schedule, ScheduleError> {
        let layout = self.layout(size)?;
        let size = layout.size;
        let orders = match self {
            Kind::GPipe => each(layout, gpipe::order),
            Kind::OneFOneB => each(layout, one_f_one_b::order),
            Kind::Interleaved => interleaved::orders(layout, interleaved::WarmUp::Stock)?,
            Kind::InterleavedOverlap => interleaved::orders(layout, interleaved::WarmUp::OneMore)?,
            Kind::ZbH1 => each(layout, |stage| zb_h::order(stage, 1)),
            Kind::ZbH2 => each(layout, |stage| zb_h::order(stage, 2)),
            Kind::ZbV => each(layout, zb_v::order),
            Kind::VHalf => v_pattern::orders(layout, &v_pattern::half(size.stages))?,
            Kind::VMin => v_pattern::orders(layout, &v_pattern::min(size.stages))?,
            Kind::InterleavedZb => interleaved_zb::orders(layout)?,
            Kind::DualPipe | Kind::DualPipeV => dualpipe::orders(layout)?,
        };
        Ok(Schedule::new(layout, orders))
    }

    fn layout(self, size: Size) -> Result<Layout, ScheduleError> {
        let placement = self.placement();
        let chunks = match (placement, size.chunks) {
            (Placement::Wave, 2) | (Placement::Blocked | Placement::Interleaved, _) => size.chunks,
            (Placement::Wave, other) => {
                return Err(ScheduleError::new(
                    format!("{} has 2 chunks a stage, not {other}", self.name()),
                    "use 2 chunks; vpp takes any number",
                ));
            }
            // A stage's place in one direction or in both: the same schedule.
            (Placement::TwoWay, 1) => 2,
            (Placement::TwoWay, even) if even.is_multiple_of(2) => even,
            (Placement::TwoWay, odd) => {
                return Err(ScheduleError::new(
                    format!("{} has an even number of chunks a stage, half for each direction, not {odd}", self.name()),
                    format!("use {} or {}", odd - 1, odd + 1),
                ));
            }
        };
        Ok(Layout { size: Size { chunks, ..size }, placement })
    }
}

/// An order for each stage, each made alone.
fn each(layout: Layout, order: impl Fn(Stage) -> Vec<Item>) -> Vec<Vec<Item>> {
    (0..layout.size.stages).map(|stage| order(Stage::new(layout, stage))).collect()
}
