//! From a region to its program.
//!
//! 1. The space is brought to normal form ([`super::space`]).
//! 2. Rows no longer than a block are worked on many at a time, each block in one pass (*narrow*); longer ones one at a time in blocks of columns, with a
//!    pass for each level of row reductions (*wide*): softmax over a vocabulary has three.
//! 3. Steps become instructions in the pass in which their operands are known; values that a later pass needs are kept for the whole row.
//! 4. A stored value is computed straight into memory where nothing reads that place later.
//! 5. Instructions are put together to chains ([`super::chain`]), and registers given out by life time.

use super::super::rows::CHUNK;
use super::super::{PrepareCx, PrepareError, ensure};
use super::program::{Class, Home, Instruction, Op, Operand, Phase, Program, Slot};
use super::space::{Accesses, Place, Shape, Space, in_parts, normalise};
use super::steps::{check_arity, is_comparison, operation, wanted};
use forebay_plan::{self as plan, Arg, DType, StepOp};
use std::collections::HashMap;

/// Elements of a block: small enough that a dozen registers stay in the second-level cache, large enough that what is done once for a block costs little.
const BLOCK: usize = 4096;
// Rows are reduced in parts that are cut there.
const _: () = assert!(BLOCK.is_multiple_of(CHUNK));
/// The same where everything goes from memory to memory: there are no registers, only starting costs.
const MOVED_BLOCK: usize = 16 * 1024;

/// Compiles a region.
pub(super) fn compile(region: &plan::Region, cx: &PrepareCx) -> Result<Program, PrepareError> {
    compile_over(region, normalise(region, cx)?, cx)
}

/// Compiles a region of rows and columns of which a part is run at a time.
pub(super) fn compile_in_parts(region: &plan::Region, cx: &PrepareCx) -> Result<Program, PrepareError> {
    compile_over(region, in_parts(region, cx)?, cx)
}

fn compile_over(
    region: &plan::Region,
    (space, accesses): (Space, Accesses),
    cx: &PrepareCx,
) -> Result<Program, PrepareError> {
    check_in_place(region, &accesses, cx)?;
    let mut compiler = Compiler::new(region, space, accesses)?;
    compiler.find_uses(cx)?;
    compiler.steps()?;
    compiler.stores()?;
    let program = super::jit::find(super::chain::find(compiler.finish(), cx.cpu), cx.cpu);
    Ok(super::registers::assign(program))
}

/// A store may share its place with a load only when both see it in the same way, and never with what is looked up or an index.
fn check_in_place(region: &plan::Region, accesses: &Accesses, cx: &PrepareCx) -> Result<(), PrepareError> {
    let bytes = |view: &plan::View| cx.buffers[view.buffer as usize].dtype.bytes();
    for store in &region.stores {
        for load in &region.loads {
            let shared = |read: &plan::View| cx.same_place(store.view.buffer as usize, read.buffer as usize);
            let same = store.view.offset == load.view.offset
                && store.view.strides == load.view.strides
                && bytes(&store.view) == bytes(&load.view);
            let apart = match &load.through {
                Some(lookup) => !shared(&load.view) && !shared(&lookup.index),
                None => !shared(&load.view) || same,
            };
            ensure(apart, || format!("buffer {} is read and written through different views", store.view.buffer))?;
        }
    }
    let lookups = region.loads.iter().filter(|l| l.through.is_some()).count();
    debug_assert!(accesses.all.len() == accesses.loads + accesses.indices + region.stores.len() + lookups);
    Ok(())
}

/// A value of the region: a load or a step.
#[derive(Clone, Copy, Debug)]
struct Value {
    slot: Slot,
    /// The pass after which it is there: a reduction's result is known one pass later than its operand.
    ready: usize,
}

struct Compiler<'r> {
    region: &'r plan::Region,
    program: Program,
    /// Number of loads and of index steps, which come first in the accesses.
    loads: usize,
    indices: usize,
    steps: Vec<Option<Value>>,
    /// Is the step's result used (else it is left out)?
    used: Vec<bool>,
    /// For each step the last pass that uses it, when that is later than its own.
    kept: Vec<bool>,
    /// For each load the last pass and, within it, step that reads its memory: (pass, step + 1).
    last_read: Vec<(usize, usize)>,
    /// For each step: the store into which it computes directly.
    direct: Vec<Option<usize>>,
    stored: Vec<bool>,
    /// For each store the first pass at whose end it may run.
    store_phase: Vec<usize>,
    /// Loads that are stored, and whose memory a store writes: they are read before the first store.
    endangered: Vec<bool>,
    /// Loads whose memory a store writes.
    overwritten: Vec<bool>,
    /// Loads that are in registers, by access and pass (one pass for the prologue).
    loaded: HashMap<(usize, usize), Slot>,
    access_slots: HashMap<usize, Slot>,
    constants: HashMap<(u64, Class), Slot>,
}

pub(super) fn class(dtype: DType) -> Class {
    match dtype {
        DType::F32 | DType::Bf16 => Class::F32,
        DType::F64 => Class::F64,
        DType::I32 | DType::I16 => Class::I32,
        DType::Bool => Class::Bool,
    }
}

/// Is an element in memory what it is in a register?
fn is_plain(dtype: DType) -> bool {
    !matches!(dtype, DType::Bf16 | DType::I16)
}

/// The pass that stands for the prologue in `loaded`.
const PROLOGUE: usize = usize::MAX;

impl<'r> Compiler<'r> {
    fn new(region: &'r plan::Region, space: Space, accesses: Accesses) -> Result<Compiler<'r>, PrepareError> {
        let row = space.row();
        let moves = region.steps.is_empty() && region.loads.iter().all(|l| l.through.is_some());
        let block = if moves { MOVED_BLOCK } else { BLOCK };
        let narrow = row <= block;
        let reduces = region.steps.iter().any(|s| s.op.is_row_reduction());
        let program = Program {
            block_rows: if narrow { (block / row.max(1)).max(1) } else { 1 },
            block_columns: if narrow { row } else { block },
            whole_rows: reduces || narrow,
            reduces,
            space,
            accesses: accesses.all,
            operands: vec![],
            moving: vec![],
            constants: vec![],
            prologue: vec![],
            phases: vec![],
            register_bytes: 0,
            weight: 0,
        };
        let n = region.steps.len();
        Ok(Compiler {
            region,
            program,
            loads: accesses.loads,
            indices: accesses.indices,
            steps: vec![None; n],
            used: vec![false; n],
            kept: vec![false; n],
            last_read: vec![(0, 0); accesses.loads],
            direct: vec![None; n],
            stored: vec![false; region.stores.len()],
            store_phase: vec![0; region.stores.len()],
            endangered: vec![false; accesses.loads],
            overwritten: vec![false; accesses.loads],
            loaded: HashMap::new(),
            access_slots: HashMap::new(),
            constants: HashMap::new(),
        })
    }

    /// Is a block a part of one row?
    fn wide(&self) -> bool {
        self.program.block_columns < self.program.space.row()
    }

    /// Is there one row at most? A ragged dimension may have a bound of 1.
    fn is_one_row(&self) -> bool {
        let space = &self.program.space;
        space.dims[..space.outer()].iter().all(|&size| size == 1)
    }

    /// The shape of an access in a block. Within one row, and where there is only one, columns are all there is.
    fn shape_of(&self, access: usize) -> Shape {
        let of = |access: usize| self.program.space.shape(&self.program.accesses[access]);
        let through = self.program.accesses[access].through;
        let shape = through.map_or(of(access), |t| of(access).join(of(t.index)));
        let columns_are_all = self.wide() || self.is_one_row();
        if shape == Shape::Column && columns_are_all { Shape::Full } else { shape }
    }

    fn phase(&mut self, phase: usize) -> &mut Phase {
        if self.program.phases.len() <= phase {
            self.program.phases.resize_with(phase + 1, Phase::default);
        }
        &mut self.program.phases[phase]
    }

    /// Where an instruction goes that makes a value of a shape.
    fn emit(&mut self, phase: usize, instruction: Instruction) {
        let wide = self.wide();
        match instruction.shape {
            Shape::One | Shape::Column if !is_reduce(&instruction) => self.program.prologue.push(instruction),
            Shape::Row if wide && !is_reduce(&instruction) => self.phase(phase).before.push(instruction),
            _ => self.phase(phase).blocks.push(instruction),
        }
    }

    fn operand(&mut self, home: Home, shape: Shape, class: Class) -> Slot {
        self.program.operands.push(Operand { home, shape, class });
        self.program.operands.len() - 1
    }

    fn register(&mut self, shape: Shape, class: Class) -> Slot {
        self.operand(Home::Register { at: usize::MAX }, shape, class)
    }

    fn constant(&mut self, value: f64, dtype: DType) -> Slot {
        let mut bytes = [0u8; 8];
        match dtype {
            DType::F64 => bytes = value.to_ne_bytes(),
            DType::F32 => bytes[..4].copy_from_slice(&(value as f32).to_ne_bytes()),
            DType::Bf16 => {
                let rounded = super::super::math::round_to_bf16(value as f32);
                bytes[..4].copy_from_slice(&rounded.to_ne_bytes());
            }
            DType::I32 | DType::I16 => bytes[..4].copy_from_slice(&(value as i32).to_ne_bytes()),
            DType::Bool => bytes[0] = (value != 0.0) as u8,
        }
        let bytes = u64::from_ne_bytes(bytes);
        let class = class(dtype);
        if let Some(&slot) = self.constants.get(&(bytes, class)) {
            return slot;
        }
        self.program.constants.push(bytes);
        let slot = self.operand(Home::Constant(self.program.constants.len() - 1), Shape::One, class);
        self.constants.insert((bytes, class), slot);
        slot
    }

    /// The type of a load or step; nothing for a constant, which takes any.
    fn arg_dtype(&self, arg: Arg) -> Option<DType> {
        match arg {
            Arg::Load(i) => Some(self.program.accesses[i as usize].dtype),
            Arg::Step(i) => Some(self.region.steps[i as usize].dtype),
            Arg::Const(_) => None,
        }
    }

    /// The pass in which a value is first there, by the levels of reductions alone.
    fn ready(&self, arg: Arg, levels: &[usize]) -> usize {
        match arg {
            Arg::Step(i) => levels[i as usize],
            Arg::Load(_) | Arg::Const(_) => 0,
        }
    }

    /// Checks references, finds which steps are used, which values a later pass needs, and when each load is read last.
    fn find_uses(&mut self, cx: &PrepareCx) -> Result<(), PrepareError> {
        let region = self.region;
        let valid = |arg: Arg, before: usize| match arg {
            Arg::Load(i) => (i as usize) < region.loads.len(),
            Arg::Step(i) => (i as usize) < before,
            Arg::Const(_) => true,
        };
        for (i, step) in region.steps.iter().enumerate() {
            ensure(step.args.iter().all(|&a| valid(a, i)), || format!("step {i} uses what is not there yet"))?;
        }
        for store in &region.stores {
            ensure(valid(store.value, region.steps.len()), || "a store of a step that does not exist".into())?;
            if let Arg::Step(i) = store.value {
                self.used[i as usize] = true;
            }
        }
        for i in (0..region.steps.len()).rev() {
            if self.used[i] {
                for arg in &region.steps[i].args {
                    if let Arg::Step(j) = *arg {
                        self.used[j as usize] = true;
                    }
                }
            }
        }
        // Levels: a step runs when its operands are ready; a reduction's result is ready one pass later.
        let wide = self.wide();
        let mut levels = vec![0; region.steps.len()];
        let mut runs = vec![0; region.steps.len()];
        for (i, step) in region.steps.iter().enumerate() {
            runs[i] = step.args.iter().map(|&a| self.ready(a, &levels)).max().unwrap_or(0);
            levels[i] = runs[i] + (wide && step.op.is_row_reduction()) as usize;
        }
        for (i, step) in region.steps.iter().enumerate().filter(|(i, _)| self.used[*i]) {
            for &arg in &step.args {
                match arg {
                    Arg::Step(j) => self.kept[j as usize] |= levels[j as usize] < runs[i],
                    Arg::Load(l) => {
                        let last = &mut self.last_read[l as usize];
                        *last = (*last).max((runs[i], i + 1));
                    }
                    Arg::Const(_) => {}
                }
            }
        }
        let end = levels.iter().copied().max().unwrap_or(0);
        self.phase(end);
        self.find_store_phases(cx, &levels);
        self.choose_direct(cx, &runs, &levels);
        Ok(())
    }

    /// Loads whose memory a store writes.
    fn shared_loads<'a>(&'a self, store: usize, cx: &'a PrepareCx) -> impl Iterator<Item = usize> + 'a {
        let written = self.region.stores[store].view.buffer as usize;
        let loads = self.region.loads.iter().enumerate();
        loads.filter(move |(_, l)| cx.same_place(l.view.buffer as usize, written)).map(|(i, _)| i)
    }

    /// The first pass at whose end each store may run: after whoever reads its place.
    fn find_store_phases(&mut self, cx: &PrepareCx, levels: &[usize]) {
        let stores = &self.region.stores;
        let shared: Vec<Vec<usize>> = (0..stores.len()).map(|s| self.shared_loads(s, cx).collect()).collect();
        let takes = |store: usize, load: usize| stores[store].value == Arg::Load(load as u32);
        for (store, loads) in shared.iter().enumerate() {
            for &load in loads {
                self.overwritten[load] = true;
                self.endangered[load] |= (0..stores.len()).any(|s| takes(s, load));
            }
            let read = loads.iter().map(|&l| self.last_read[l].0).max().unwrap_or(0);
            self.store_phase[store] = read.max(self.ready(stores[store].value, levels));
        }
        // A store takes a load at the end of its own pass, and whatever overwrites that load comes no earlier. Waiting goes from store to store.
        for _ in stores {
            for (store, loads) in shared.iter().enumerate() {
                let takers = (0..stores.len()).filter(|&s| loads.iter().any(|&l| takes(s, l)));
                let wait = takers.map(|s| self.store_phase[s]).max().unwrap_or(0);
                self.store_phase[store] = self.store_phase[store].max(wait);
            }
        }
    }

    /// Which steps compute straight into memory.
    fn choose_direct(&mut self, cx: &PrepareCx, runs: &[usize], levels: &[usize]) {
        let region = self.region;
        for store in 0..region.stores.len() {
            let Arg::Step(step) = region.stores[store].value else { continue };
            let (access, step) = (self.loads + self.indices + store, step as usize);
            let (dtype, op) = (region.steps[step].dtype, region.steps[step].op);
            let read_before = |l: usize| self.last_read[l] < (runs[step], step + 1) && !self.endangered[l];
            let unread = self.shared_loads(store, cx).all(read_before);
            let plain = is_plain(dtype) && self.program.accesses[access].dtype == dtype;
            let elementwise = !op.is_row_reduction() && !matches!(op, StepOp::Index(_));
            let fits = self.shape_of(access) == Shape::Full && self.in_place(access);
            if unread && plain && elementwise && fits && self.direct[step].is_none() {
                self.direct[step] = Some(store);
            } else {
                // A block of the value lives as long as its pass.
                self.kept[step] |= levels[step] < self.store_phase[store];
            }
        }
    }

    /// Can instructions use an access where it is?
    fn in_place(&self, access: usize) -> bool {
        let (space, access_) = (&self.program.space, &self.program.accesses[access]);
        let (outer, row) = access_.strides.split_at(space.outer());
        let plain = is_plain(access_.dtype) && access_.place != Place::Index && access_.through.is_none();
        let across = outer.last().copied().unwrap_or(0);
        plain
            && match self.shape_of(access) {
                Shape::One => true,
                Shape::Row => across <= 1 || self.wide(),
                Shape::Column | Shape::Full => space.row_dims == 1 && row == [1],
            }
    }

    /// An access as an operand for instructions of a pass, copied to a register where it cannot be used as it is.
    fn load(&mut self, access: usize, phase: usize) -> Slot {
        let (shape, dtype) = (self.shape_of(access), self.program.accesses[access].dtype);
        if self.in_place(access) {
            return self.access_slot(access);
        }
        let hoisted = matches!(shape, Shape::One | Shape::Column);
        let key = (access, if hoisted { PROLOGUE } else { phase });
        if let Some(&slot) = self.loaded.get(&key) {
            return slot;
        }
        let to = self.register(shape, class(dtype));
        self.emit(phase, Instruction { op: Op::Load(access), shape, to, args: [to; 3] });
        self.loaded.insert(key, to);
        to
    }

    fn access_slot(&mut self, access: usize) -> Slot {
        if let Some(&slot) = self.access_slots.get(&access) {
            return slot;
        }
        let (shape, dtype) = (self.shape_of(access), self.program.accesses[access].dtype);
        let slot = self.operand(Home::Access(access), shape, class(dtype));
        self.access_slots.insert(access, slot);
        slot
    }

    /// An argument as an operand. Constants take `dtype`.
    fn arg(&mut self, arg: Arg, dtype: DType, phase: usize) -> Slot {
        match arg {
            Arg::Const(value) => self.constant(value, dtype),
            Arg::Load(i) => self.load(i as usize, phase),
            Arg::Step(i) => self.steps[i as usize].expect("used steps are compiled in order").slot,
        }
    }

    fn steps(&mut self) -> Result<(), PrepareError> {
        let mut index = self.loads;
        for i in 0..self.region.steps.len() {
            let access = index;
            index += matches!(self.region.steps[i].op, StepOp::Index(_)) as usize;
            if self.used[i] {
                let value = self.step(i, access)?;
                self.steps[i] = Some(value);
            }
        }
        Ok(())
    }

    fn step(&mut self, i: usize, index_access: usize) -> Result<Value, PrepareError> {
        let region = self.region;
        let step = &region.steps[i];
        let (dtype, op) = (step.dtype, step.op);
        check_arity(i, op, step.args.len())?;
        if matches!(op, StepOp::Index(_)) {
            ensure(dtype == DType::I32, || format!("step {i}: an index is i32"))?;
            return self.index(i, index_access);
        }
        // What constants are, and what the other operands must be.
        let known = step.args.iter().find_map(|&a| self.arg_dtype(a));
        let operand = match op {
            StepOp::Cast => known.unwrap_or(dtype),
            StepOp::Lower => DType::F32,
            _ if is_comparison(op) => known.unwrap_or(DType::F64),
            _ => dtype,
        };
        let phase = step.args.iter().map(|&a| self.value_ready(a)).max().unwrap_or(0);
        let mut args = [0; 3];
        for (at, &arg) in step.args.iter().enumerate() {
            let want = wanted(op, at, operand);
            let have = self.arg_dtype(arg).unwrap_or(want);
            ensure(class(have) == class(want), || format!("step {i}: operand {at} is {have:?}, not {want:?}"))?;
            args[at] = self.arg(arg, want, phase);
        }
        let n = step.args.len();
        let first = args[0];
        args[n..].fill(first);
        let code = operation(op, class(operand), class(dtype))
            .ok_or_else(|| PrepareError(format!("step {i}: {op:?} of {operand:?} to {dtype:?}")))?;
        if let Op::Reduce(..) = code {
            return Ok(self.reduce(code, dtype, args[0], phase));
        }
        let rounds = dtype == DType::Bf16 && !self.exact_in_bf16(step) && !self.only_stored(i);
        let copies = op == StepOp::Cast && class(operand) == class(dtype) && !rounds;
        if copies && !self.kept[i] && self.direct[i].is_none() && !self.is_overwritten(args[0]) {
            return Ok(Value { slot: args[0], ready: phase });
        }
        let shape = args[..n].iter().map(|&a| self.program.operands[a].shape).fold(Shape::One, Shape::join);
        let to = match self.direct[i] {
            Some(store) if shape == Shape::Full => {
                self.stored[store] = true;
                self.access_slot(self.loads + self.indices + store)
            }
            _ => self.destination(i, shape, class(dtype)),
        };
        self.emit(phase, Instruction { op: code, shape, to, args });

        if rounds {
            self.emit(phase, Instruction { op: Op::Round, shape, to, args: [to; 3] });
        }
        Ok(Value { slot: to, ready: phase })
    }

    /// Is an operand memory that a store writes? Its value must not be looked up there later.
    fn is_overwritten(&self, slot: Slot) -> bool {
        match self.program.operands[slot].home {
            Home::Access(access) => self.overwritten.get(access) == Some(&true),
            _ => false,
        }
    }

    /// Is the step's value used by stores to bf16 only, which round it themselves?
    fn only_stored(&self, i: usize) -> bool {
        let this = Arg::Step(i as u32);
        let mut steps = self.region.steps.iter().zip(&self.used);
        let first_store = self.loads + self.indices;
        let narrow = |store: usize| self.program.accesses[first_store + store].dtype == DType::Bf16;
        !steps.any(|(s, &used)| used && s.args.contains(&this))
            && self.region.stores.iter().enumerate().all(|(at, s)| s.value != this || narrow(at))
    }

    /// Is the result a bf16 without rounding?
    fn exact_in_bf16(&self, step: &plan::Step) -> bool {
        use StepOp::*;
        let keeps = matches!(step.op, Neg | Abs | Sign | Floor | Min | Max | Cast | Select);
        let operands = if step.op == Select { &step.args[1..] } else { &step.args[..] };
        // A constant operand takes the step's type, and is rounded when the region is compiled.
        keeps && operands.iter().all(|&a| self.arg_dtype(a).is_none_or(|d| d == DType::Bf16))
    }

    fn destination(&mut self, i: usize, shape: Shape, class: Class) -> Slot {
        if self.kept[i] && shape == Shape::Full {
            self.operand(Home::LongRegister { at: usize::MAX }, shape, class)
        } else {
            self.register(shape, class)
        }
    }

    fn value_ready(&self, arg: Arg) -> usize {
        match arg {
            Arg::Step(i) => self.steps[i as usize].map_or(0, |v| v.ready),
            Arg::Load(_) | Arg::Const(_) => 0,
        }
    }

    /// The index along a dimension: made like a load, in the pass of its first use; passes that use it later keep it like any value.
    fn index(&mut self, i: usize, access: usize) -> Result<Value, PrepareError> {
        let shape = self.shape_of(access);
        let to = self.destination(i, shape, Class::I32);
        self.emit(0, Instruction { op: Op::Load(access), shape, to, args: [to; 3] });
        Ok(Value { slot: to, ready: 0 })
    }

    fn reduce(&mut self, code: Op, dtype: DType, arg: Slot, phase: usize) -> Value {
        let operand = self.program.operands[arg];
        let full = if operand.shape == Shape::Full {
            arg
        } else {
            let to = self.register(Shape::Full, operand.class);
            let copy = Instruction { op: Op::Copy(operand.class), shape: Shape::Full, to, args: [arg; 3] };
            self.phase(phase).blocks.push(copy);
            to
        };
        let to = self.register(Shape::Row, operand.class);
        self.emit(phase, Instruction { op: code, shape: Shape::Row, to, args: [full; 3] });
        let ready = phase + self.wide() as usize;
        if dtype == DType::Bf16 {
            self.emit(ready, Instruction { op: Op::Round, shape: Shape::Row, to, args: [to; 3] });
        }
        Value { slot: to, ready }
    }

    /// The stores that no step has taken over: at the end of a pass. All that they read is read before the first of them.
    fn stores(&mut self) -> Result<(), PrepareError> {
        let mut list = vec![];
        let region = self.region;
        for (i, store) in region.stores.iter().enumerate() {
            if self.stored[i] {
                continue;
            }
            let access = self.loads + self.indices + i;
            let (want, shape) = (self.program.accesses[access].dtype, self.shape_of(access));
            let have = self.arg_dtype(store.value).unwrap_or(want);
            ensure(class(have) == class(want), || format!("store {i}: {have:?} to {want:?}"))?;
            let phase = self.store_phase[i];
            if let Arg::Load(load) = store.value
                && self.transfers(load as usize, access)
            {
                let (op, to) = (Op::Transfer { load: load as usize, store: access }, self.access_slot(access));
                list.push((phase, Instruction { op, shape, to, args: [to; 3] }));
                continue;
            }
            let value = match store.value {
                Arg::Load(l) if self.endangered[l as usize] => self.copied_load(l as usize, phase),
                _ => self.arg(store.value, want, phase),
            };
            let from = self.program.operands[value].shape;
            // A single row has one place a row and one place in all.
            let single = from == Shape::Row && self.is_one_row();
            let fits = from.join(shape) == shape || self.program.space.row() == 1 || single;
            ensure(fits, || format!("store {i}: a value of each element, one place a row"))?;
            list.push((phase, Instruction { op: Op::Store(access), shape, to: value, args: [value; 3] }));
        }
        let end = self.program.phases.len();
        for (phase, store) in list {
            if self.wide() && matches!(store.shape, Shape::Row | Shape::One) {
                // Blocks of the last pass may still read the place.
                self.phase(end).before.push(store);
            } else {
                self.phase(phase).blocks.push(store);
            }
        }
        Ok(())
    }

    /// Does a store take what is looked up from memory to memory? When nothing else needs it in a register.
    fn transfers(&self, load: usize, store: usize) -> bool {
        let (from, to) = (&self.program.accesses[load], &self.program.accesses[store]);
        let mut steps = self.region.steps.iter().zip(&self.used);
        from.through.is_some()
            && from.dtype == to.dtype
            && self.shape_of(load) == Shape::Full
            && self.shape_of(store) == Shape::Full
            && !steps.any(|(s, &used)| used && s.args.contains(&Arg::Load(load as u32)))
    }

    /// A load in a register, wherever it could be used.
    fn copied_load(&mut self, access: usize, phase: usize) -> Slot {
        let (shape, dtype) = (self.shape_of(access), self.program.accesses[access].dtype);
        let to = self.register(shape, class(dtype));
        self.emit(phase, Instruction { op: Op::Load(access), shape, to, args: [to; 3] });
        to
    }

    fn finish(mut self) -> Program {
        // Passes follow each other within a row.
        self.program.whole_rows |= self.program.phases.len() > 1;
        let moves =
            |slot: &Slot| matches!(self.program.operands[*slot].home, Home::Access(_) | Home::LongRegister { .. });
        self.program.moving = (0..self.program.operands.len()).filter(moves).collect();
        self.program.weight = self.program.phases.iter().map(|p| p.blocks.len()).sum::<usize>().max(1);
        self.program
    }
}

fn is_reduce(instruction: &Instruction) -> bool {
    matches!(instruction.op, Op::Reduce(..))
}
