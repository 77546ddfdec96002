//! A plan that runs one graph once: for textual IR without a model, for tests and experiments.

use super::{Exchanges, Home, Interface, Joins, Rows, align, dtype, emit};
use forebay_ir::{Graph, InputRole, ValueId};
use forebay_plan as plan;

/// A plan with one phase, `train` (only training changes tensors), whose inputs and outputs are tensors of kind `state`: `in.<name>` and `out.<number>.<name>`.
/// Random ops take their key from the phase's scalars.
pub fn standalone(graph: &Graph, joins: Joins) -> plan::Plan {
    let mut tensors: Vec<plan::Tensor> = vec![];
    let mut slots: Vec<plan::Slot> = vec![];
    let mut bytes = 0;
    let mut home = |value: ValueId, name: String, access: plan::Access| {
        let ty = graph.ty(value);
        let dims = graph.dims(&ty.axes).into_iter().map(|(_, n)| n).collect();
        let init = plan::Init::Constant(0.0);
        let slot =
            plan::Slot { name: name.clone(), access, space: plan::Space::Device, bytes: align(graph.bytes(value)) };
        tensors.push(plan::Tensor {
            name,
            kind: plan::TensorKind::State,
            dtype: dtype(ty.dtype),
            dims,
            block: vec![],
            range: None,
            form: plan::Form::Whole,
            space: plan::Space::Device,
            offset: bytes,
            init,
        });
        bytes += slot.bytes;
        slots.push(slot);
        Home { slot: slots.len() - 1, offset: 0 }
    };
    let mut inputs = vec![];
    for input in &graph.inputs {
        let name = &graph.node(input.value).name;
        let random_key = input.role == InputRole::Runtime && name == "rng";
        inputs.push((!random_key).then(|| home(input.value, format!("in.{name}"), plan::Access::Read)));
    }
    let mut outputs = vec![];
    for (number, output) in graph.outputs.iter().enumerate() {
        outputs.push(home(output.value, format!("out.{number}.{}", output.name), plan::Access::Write));
    }
    let changes = graph.outputs.iter().any(|o| graph.bytes(o.value) > 0);
    let interface = Interface { slots, inputs, outputs, rows: Rows::whole(1), exchanges: Exchanges::BesideWork, joins };
    let emitted = emit(graph, &interface);
    let mut places: Vec<u64> = tensors.iter().map(|t| t.offset).collect();
    places.push(bytes);
    let placed = bytes + align(emitted.program.slots.last().map_or(0, |frame| frame.bytes));
    let call = plan::Call { program: 0, layer: 0, micro_batch: 0, slots: places, waits: vec![] };
    let phase = plan::Phase {
        name: "train".into(),
        rows: 1,
        seq: 1,
        feeds: vec![],
        scalars: vec![],
        calls: vec![call],
        commit: u32::from(!changes),
        reports: vec![],
        outputs: vec![],
        memory: plan::MemoryUse {
            other: bytes,
            activations: placed - bytes,
            live_peak: bytes + align(emitted.frame_live),
            placed,
            ..plan::MemoryUse::default()
        },
    };
    let role = plan::Role {
        name: "rank".into(),
        coordinates: vec![],
        device_bytes: placed,
        host_bytes: 0,
        persistent_bytes: bytes,
        host_persistent_bytes: 0,
        tensors,
        layers: vec![graph.name.clone()],
        phases: vec![phase],
    };
    plan::Plan {
        format: "forebay-plan".into(),
        version: plan::VERSION,
        model: graph.name.clone(),
        settings: plan::Settings {
            compute: plan::DType::F32,
            batch: 1,
            micro_batches: 1,
            seq: 1,
            vocab: 1,
            packed: false,
            steps: 1,
            params: 0,
            active_params: 0,
            flops_per_step: 0.0,
        },
        mesh: vec![],
        programs: vec![emitted.program],
        roles: vec![role],
    }
}
