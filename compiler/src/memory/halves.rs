//! Parameters in halves: beside the copies in bf16 that programs read, the optimizer keeps the 16 bits that these lack instead of 32 of its own.
//!
//! ```text
//! param   = load param                     param   = join (load copy) (load lower) (load second)
//! second  = load second                    second  = abs (load second)
//! …                                 ──►    …
//! store param  p                           store lower   (lower p)
//! store second s                           store second  (mark s p)
//! store copy   (cast p)                    store copy    (cast p)
//! ```
//!
//! Rounding to nearest loses a bit that 16 cannot hold; the second moment, which is never negative, has it as its sign. So four bytes a parameter instead of
//! six, in the same pass over memory.
//!
//! Requires: a program of elementwise regions in which one region reads and writes all three. Keeps: every number bit for bit.

use forebay_plan::{Arg, DType, Kernel, Load, Program, Region, Step, StepOp, Store, View};

/// Slots of the program: masters, copies and second moments.
#[derive(Clone, Copy)]
struct Slots {
    masters: u32,
    copies: u32,
    moments: u32,
}

/// Makes halves of the masters in the slot of the first name; the others are those of their copies and second moments.
///
/// # Panics
/// When the program does not read and write all three in one region each time: the optimizer's does.
pub fn split(program: &mut Program, names: [&str; 3]) {
    let [masters, copies, moments] = names.map(|name| {
        let found = program.slots.iter().position(|s| s.name == name);
        found.unwrap_or_else(|| panic!("the optimizer has a slot {name}")) as u32
    });
    let slots = Slots { masters, copies, moments };
    let slot = &mut program.slots[masters as usize];
    slot.name = "state.lower".into();
    for buffer in program.buffers.iter_mut().filter(|b| b.slot == masters) {
        buffer.dtype = DType::I16;
        slot.bytes = slot.bytes.min(crate::emit::align(buffer.bytes()));
    }
    program.slots[copies as usize].access = forebay_plan::Access::Update;
    let homes: Vec<u32> = program.buffers.iter().map(|b| b.slot).collect();
    for instruction in &mut program.instructions {
        match &mut instruction.kernel {
            Kernel::Region(region) => split_region(region, slots, &homes),
            kernel => {
                let touched = kernel.buffers_mut().into_iter().any(|b| homes[*b as usize] == masters);
                assert!(!touched, "masters are read and written by regions");
            }
        }
    }
}

fn split_region(region: &mut Region, slots: Slots, homes: &[u32]) {
    let home = |view: &View| homes[view.buffer as usize];
    let load_of = |slot: u32| region.loads.iter().position(|l| l.through.is_none() && home(&l.view) == slot);
    let store_of = |slot: u32| region.stores.iter().position(|s| home(&s.view) == slot);
    let touches = region.loads.iter().any(|l| home(&l.view) == slots.masters) || store_of(slots.masters).is_some();
    if !touches {
        return;
    }
    let all = || {
        let loads = (load_of(slots.masters)?, load_of(slots.moments)?);
        Some((loads, store_of(slots.masters)?, store_of(slots.moments)?, store_of(slots.copies)?))
    };
    let ((lower, moment), master, second, copy) = all().expect("one region updates parameters, moments and copies");

    // The copy is read where it is written.
    let upper = region.loads.len();
    region.loads.push(Load::from(region.stores[copy].view.clone()));
    let arg = |load: usize| Arg::Load(load as u32);
    let mut steps = vec![
        Step { op: StepOp::Join, dtype: DType::F32, args: vec![arg(upper), arg(lower), arg(moment)] },
        Step { op: StepOp::Abs, dtype: DType::F32, args: vec![arg(moment)] },
    ];
    let first = steps.len() as u32;
    let moved = |value: Arg| match value {
        Arg::Step(step) => Arg::Step(step + first),
        Arg::Load(load) if load as usize == lower => Arg::Step(0),
        Arg::Load(load) if load as usize == moment => Arg::Step(1),
        value => value,
    };
    for step in &region.steps {
        steps.push(Step { args: step.args.iter().map(|a| moved(*a)).collect(), ..step.clone() });
    }
    let mut stores: Vec<Store> = region.stores.clone();
    stores.iter_mut().for_each(|store| store.value = moved(store.value));
    let (next, moment) = (stores[master].value, stores[second].value);
    let added = steps.len() as u32;
    steps.push(Step { op: StepOp::Lower, dtype: DType::I16, args: vec![next] });
    steps.push(Step { op: StepOp::Mark, dtype: DType::F32, args: vec![moment, next] });
    stores[master].value = Arg::Step(added);
    stores[second].value = Arg::Step(added + 1);
    (region.steps, region.stores) = (steps, stores);
}
