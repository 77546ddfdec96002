//! The invariants, and the list of those that a plan breaks.

use super::MAX_VIOLATIONS;
use std::fmt;

macro_rules! rules {
    ($($name:ident $text:literal $meaning:literal)*) => {
        /// An invariant of plans.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = $meaning] $name,)*
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Rule] = &[$(Rule::$name),*];

            /// Its name in messages.
            pub fn name(self) -> &'static str {
                match self { $(Rule::$name => $text),* }
            }

            /// What holds.
            pub fn meaning(self) -> &'static str {
                match self { $(Rule::$name => $meaning),* }
            }
        }
    };
}

rules! {
    // The plan as a whole.
    Header "header" "The format and the version are those of this crate."
    Settings "settings" "Sizes of a step are at least 1 and their products representable; micro-batches divide the batch; the compute type is a float type."
    Mesh "mesh" "Mesh dimensions are not too many and have distinct names and sizes of at least 1; the number of ranks is representable."
    // Tensors.
    TensorShape "tensor-shape" "A tensor's sizes are at least 1, its bytes representable, its place a multiple of 64."
    TensorPart "tensor-part" "Cuts are of different dimensions and lie inside of the whole tensor on every rank, shards are at least one element and countable; the ranks of some role hold all of each saved tensor, which must show: one mesh dimension serves one cut, or the shards."
    TensorUnique "tensor-unique" "No two tensors of a role have one name and kind; tensors of different roles with the same name and kind are one tensor."
    TensorPlace "tensor-place" "Tensors lie in the persistent region of their role and do not overlap; parts of one array share its shard, at different places."
    TensorKind "tensor-kind" "Copies, gradients and moments belong to a parameter of the same sizes and are of float type; copies and only copies are made from parameters; what half of a parameter lacks is in a copy and a second moment of the same elements."
    TensorInit "tensor-init" "Initial values are meaningful: finite deviations that are not negative, ranges that are not empty."
    // Programs.
    BufferPlace "buffer-place" "A buffer's slot exists, its place is a multiple of 64, and it lies inside of the slot."
    Streams "streams" "A program has at most one stream of each kind, and instructions are on its streams."
    EventRecorded "event-recorded" "Every event is recorded by exactly one instruction."
    EventWait "event-wait" "Instructions wait for events that earlier instructions record."
    Captured "captured" "An instruction that is launched with the one before it on its stream has one, which records nothing; it waits for nothing, and is not the host's."
    Spaces "spaces" "The matrix and vector units touch device memory only, the host's stream host memory only."
    Access "access" "Instructions change slots with access `write`, `update` or `scratch` only."
    // Kernels.
    BufferExists "buffer-exists" "Operands name buffers of the program."
    Sizes "sizes" "Sizes are at least 1, and their products for each loop and each matrix representable; dimensions, loads, stores, steps and elements of a head are not too many; nothing is divided by 0; every view has a stride for each dimension."
    ViewInside "view-inside" "Every element that an operand may touch lies inside of its buffer."
    ViewType "view-type" "An operand's buffer has the type that the kernel needs."
    Distinct "distinct" "No two elements are written to one place (the strides must show it: each at least as large as the reach of all smaller ones)."
    Alias "alias" "Buffers that a kernel writes share no memory with others that it touches; but a region, or an epilogue, may store exactly where it loads without an index, and store to different parts of one buffer."
    Matmul "matmul" "A matrix product is of float type; with ragged rows or columns the groups share one result."
    Epilogue "epilogue" "The epilogue of a product is elementwise work without lookups, over the rows and columns of a result whose rows lie side by side; it sees the result as it was made."
    Attention "attention" "Attention is of float type with a finite factor; no array has two positions or elements of a head in one place, and every query has an lse of its own; some gradient is wanted, that of a sink only where there is one."
    LinearAttention "linear-attention" "Linear attention is of float type, its result of the same type or that of its sums; no array has two positions or elements of a head in one place."
    RegionForm "region-form" "A region has a row of its last dimensions; when it reduces rows, no ragged dimension is part of them; it stores something."
    StepArgs "step-args" "A step has as many arguments as its operation takes; they name loads and earlier steps."
    StepTypes "step-types" "A step's arguments and result have the types that its operation takes; constants are representable."
    StoreType "store-type" "A stored value exists and has the type of its buffer."
    Reduce "reduce" "A reduction keeps at most all dimensions, sums numbers, and when ragged reduces that dimension first, with one result a group if it says so."
    Indexed "indexed" "The ragged dimension of a gather, scatter or exchange exists, an index can be written into the result, and what is summed are numbers."
    Sorting "sorting" "A top-k takes at most all; positions and element numbers fit an i32; groups are at least one and not too many."
    Exchange "exchange" "Truth values are not combined, and what is combined has one place; groups of rows are shared out evenly."
    GroupStarts "group-starts" "The starts of groups fill their buffer: one more than there are groups."
    EvenRows "even-rows" "The rows of an even choice of experts are no more than there is room for."
    // Programs, as a whole.
    Defined "defined" "A buffer of a `write` or `scratch` slot is written before it is read."
    Overwritten "overwritten" "What is read was not overwritten through another buffer in the same place."
    Ordered "ordered" "Two instructions of which one changes what the other touches are ordered by streams and events."
    SlotWritten "slot-written" "A program writes all buffers of its `write` slots, and something in its `update` slots."
    // Roles.
    Group "group" "A group's mesh dimensions exist, once each, and have as many ranks as it says; messages go along the mesh dimension in which roles differ, to a rank there."
    Coordinates "coordinates" "Functions of coordinates give representable values on all ranks, first rows those of the micro-batch."
    RoleRanks "role-ranks" "Every rank of the mesh has exactly one role; roles differ along one mesh dimension at most."
    PhaseRoles "phase-roles" "All roles have the same phases, of the same rows and tokens."
    Arena "arena" "The persistent region lies in the device arena, and the memory table does not contradict itself."
    PhaseName "phase-name" "Phases are called `train`, `eval` or `generate`, each at most once; their rows and tokens are at least 1, those of `train` the settings'."
    HostPlace "host-place" "Feeds, scalars, reports and outputs lie in the device arena at aligned places; what the host writes lies outside of the persistent region and overlaps nothing else it writes."
    FeedRows "feed-rows" "A feed is a known input, and its rows are rows of the phase on every rank."
    HostNames "host-names" "Reports and outputs have distinct names; reports are of float type."
    CallIndex "call-index" "A call's program, layer and micro-batch exist."
    Binding "binding" "A call binds every slot of its program to a multiple of 64 inside of the slot's space."
    CallOverlap "call-overlap" "Slots of one call do not overlap, unless both are only read."
    TensorType "tensor-type" "A buffer that lies over tensors has their type."
    CallWait "call-wait" "A call waits for events of earlier calls."
    // Phases, as a whole.
    TensorKept "tensor-kept" "No scratch slot lies in the persistent region, and all tensors but gradients are whole after a phase."
    Commit "commit" "The commit is the first call that changes a saved tensor; only `train` has such calls."
    CallDefined "call-defined" "What a call or the host reads was written before: by an earlier call, by the host, or in an earlier phase for tensors."
    CallOverwritten "call-overwritten" "What a call or the host reads was not partly overwritten by another value since."
    CallWhole "call-whole" "A slot that is read covers whole values or lies within one."
    CallOrdered "call-ordered" "Two calls of which one changes what the other touches are ordered by streams and events."
    // All ranks together.
    Lanes "lanes" "Messages of one channel, and collectives of one group, are all on one unit, which keeps them in order."
    Matched "matched" "Every message is received, as what it was sent as, before the phase ends; the members of a group agree on what they exchange."
    Deadlock "deadlock" "No rank waits for ever: what it waits for is sent, or joined, by others that do not wait for it."
    Fragmented "fragmented" "Memory is not cut into so many pieces that following it would take too long."
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub rule: Rule,
    /// Where it is broken: "program `layers.forward`, instruction 12 `attention.q`".
    pub place: String,
    /// How.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.place, self.message, self.rule)
    }
}

/// The violations so far. Stops collecting when there are enough.
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<Violation>,
    /// Those found, also when the list is full.
    count: usize,
}

impl Findings {
    pub fn push(&mut self, rule: Rule, place: impl fmt::Display, message: impl Into<String>) {
        self.count += 1;
        if !self.is_full() {
            self.list.push(Violation { rule, place: place.to_string(), message: message.into() });
        }
    }

    /// Notes a violation unless the condition holds; returns the condition.
    pub fn ensure(
        &mut self,
        holds: bool,
        rule: Rule,
        place: impl fmt::Display,
        message: impl FnOnce() -> String,
    ) -> bool {
        if !holds {
            self.push(rule, place, message());
        }
        holds
    }

    /// Runs a check; did it find nothing?
    pub fn none_since(&mut self, check: impl FnOnce(&mut Findings)) -> bool {
        let before = self.count;
        check(self);
        self.count == before
    }

    /// How many were found so far.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX_VIOLATIONS
    }

    pub fn result(self) -> Result<(), Vec<Violation>> {
        if self.list.is_empty() { Ok(()) } else { Err(self.list) }
    }
}
