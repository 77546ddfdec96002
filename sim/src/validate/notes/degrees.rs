//! Degrees and sizes of batches that a row's notes give as options, where their columns are blank.

use super::super::runs::Run;
use crate::says::{number_of, spaced};

/// The options of a column. Those that another's name is a part of come before it.
const OPTIONS: [(&str, &[&str]); 8] = [
    ("etp", &["expert tensor model parallel size", "expert tensor parallel size", "expert tensor parallel degree"]),
    ("tp", &["tensor model parallel size", "tensor parallel size", "tensor parallel degree"]),
    ("vpp", &["virtual pipeline model parallel size", "virtual pipeline parallel size", "virtual pipeline size"]),
    ("pp", &["pipeline model parallel size", "pipeline parallel size", "pipeline parallel degree"]),
    ("ep", &["expert model parallel size", "expert parallel size", "expert parallel degree"]),
    ("cp", &["context parallel size", "context parallel degree"]),
    ("mbs", &["micro batch size per gpu", "micro batch size", "per device train batch size", "local batch size"]),
    ("gbs", &["global batch size"]),
];

/// What parts of a stage have of its layers (Megatron-LM).
const LAYERS_OF_PARTS: &str = "num layers per virtual pipeline stage";

/// More is a mistake.
const MOST: f64 = 1e6;

/// What the notes of a run give for columns.
fn stated(run: &Run) -> Vec<(&'static str, u64)> {
    let mut text = spaced(&run.notes.to_lowercase());
    let whole = |n: &f64| n.fract() == 0.0 && (1.0..=MOST).contains(n);
    let mut found = vec![];
    for (column, names) in OPTIONS {
        let number = names.iter().find_map(|name| number_of(&text, name)).filter(whole);
        found.extend(number.map(|n| (column, n as u64)));
        names.iter().for_each(|name| text = text.replace(name, ""));
    }
    let of = |column: &str| {
        let noted = found.iter().find(|(name, _)| *name == column).map(|(_, n)| *n);
        run.number(column).or(noted).unwrap_or(1).max(1)
    };
    let layers = number_of(&text, LAYERS_OF_PARTS).filter(whole).map(|n| n as u64 * of("pp"));
    let parts =
        layers.filter(|some| run.degree("layers").is_multiple_of(*some)).map(|some| run.degree("layers") / some);
    found.extend(parts.map(|parts| ("vpp", parts)));
    found
}

/// The run with the blanks of its columns filled with what its notes give them.
pub fn with_degrees(run: &Run) -> Run {
    let blank = stated(run).into_iter().filter(|(column, _)| run.number(column).is_none());
    blank.fold(run.clone(), |run, (column, n)| run.with(column, n))
}

/// What was made of it, for those who wrote the notes: a column goes before them.
pub(super) fn heard(run: &Run) -> Vec<String> {
    let told = |(column, noted): (&str, u64)| match run.number(column) {
        Some(n) if n != noted => format!("{column} = {n} (its notes say {noted})"),
        _ => format!("{column} = {noted}"),
    };
    stated(run).into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(columns: &str, values: &str, notes: &str) -> Run {
        let table = format!(
            "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config{columns}\n\
             48,1,1,1,1,H100,64,512,1,\"{notes}\"{values}\n"
        );
        super::super::super::runs::read(&table).expect("a table").runs.remove(0)
    }

    #[test]
    fn blanks_are_filled_from_options_and_columns_go_before_them() {
        let notes = "--tensor-model-parallel-size 2, expert_tensor_parallel_size=1, \
                     --pipeline-model-parallel-size 4, num_layers_per_virtual_pipeline_stage: 3, micro-batch-size 2";
        let of = |run: &Run| ["tp", "etp", "pp", "vpp", "ep", "mbs"].map(|column| run.number(column));
        let filled = with_degrees(&run("", "", notes));
        assert_eq!(of(&filled), [Some(2), Some(1), Some(4), Some(4), None, Some(2)]);
        assert_eq!(heard(&filled), ["etp = 1", "tp = 2", "pp = 4", "mbs = 2", "vpp = 4"]);
        let stated = with_degrees(&run(",tp,vpp", ",8,1", notes));
        assert_eq!(of(&stated)[..4], [Some(8), Some(1), Some(4), Some(1)]);
        assert_eq!(heard(&stated)[1], "tp = 8 (its notes say 2)");
    }

    /// Virtual stages are no stages, and experts' ranks no tensor-parallel ones; what is none, or no whole number, is not given.
    #[test]
    fn an_option_is_not_a_part_of_another() {
        let of = |notes: &str| {
            let filled = with_degrees(&run("", "", notes));
            ["tp", "etp", "pp", "vpp", "mbs"].map(|column| filled.number(column))
        };
        let none = [None; 5];
        assert_eq!(of("virtual_pipeline_model_parallel_size=2"), [None, None, None, Some(2), None]);
        assert_eq!(of("expert_tensor_parallel_size=4"), [None, Some(4), None, None, None]);
        assert_eq!(of("virtual_pipeline_model_parallel_size=None, tensor_model_parallel_size=1.5"), none);
        assert_eq!(of("tensor_model_parallel_size=0, hierarchical_context_parallel_sizes 2 4"), none);
        // 48 layers in 4 stages are no parts of 5.
        assert_eq!(of("pipeline_model_parallel_size=4, num_layers_per_virtual_pipeline_stage=5")[3], None);
        assert_eq!(of("train_micro_batch_size_per_gpu=4, per_device_train_batch_size=3")[4], Some(4));
    }
}
