//! Degrees and rows of micro-batches that a row's notes give as options, where their columns are blank.

use super::super::runs::Run;
use regex_lite::Regex;
use std::sync::LazyLock;

/// The options of columns, whose words hyphens or underscores join.
const OPTIONS: [(&str, &str); 7] = [
    ("etp", "expert tensor (?:model )?parallel size|expert tensor parallel degree"),
    ("tp", "tensor (?:model )?parallel size|tensor parallel degree"),
    ("vpp", "virtual pipeline (?:model )?parallel size"),
    ("pp", "pipeline (?:model )?parallel size|pipeline parallel degree"),
    ("ep", "expert (?:model )?parallel size|expert parallel degree"),
    ("cp", "context parallel size|context parallel degree"),
    ("mbs", "(?:train )?micro batch size(?: per gpu)?|per device train batch size|local batch size"),
];

/// What parts of a stage have of its layers (Megatron-LM).
const LAYERS_OF_PARTS: &str = "num layers per virtual pipeline stage";

/// An option and a whole number. It is not a part of a longer name (`eval_micro_batch_size`, `validation.local_batch_size`), and behind the number the notes end, or another option or part begins:
/// `2M`, `1/2` and `4 tokens` are other numbers.
fn option(names: &str) -> Regex {
    let names = names.replace(' ', "[-_]");
    let before = r"(?:^|[^-_.\w])-{0,2}(?:(?:train|training|parallelism|model|strategy)\.)?";
    let behind = r"(?: *(?:$|[,;)\]}])| +(?:-|and\b|with\b|[a-z]+_))";
    let pattern = format!(r#"{before}(?:{names})["']?(?: ?[=:] ?| )["']?(\d{{1,6}})["']?{behind}"#);
    Regex::new(&pattern).expect("the pattern is right")
}

/// The one number that a text gives an option; none where it gives several.
fn number(text: &str, option: &Regex) -> Option<u64> {
    let mut given = option.captures_iter(text).filter_map(|found| found[1].parse().ok()).filter(|n| *n > 0);
    let first: u64 = given.next()?;
    given.all(|other| other == first).then_some(first)
}

/// What the notes of a run give for columns.
fn stated(run: &Run) -> Vec<(&'static str, u64)> {
    static COLUMNS: LazyLock<Vec<(&str, Regex)>> =
        LazyLock::new(|| OPTIONS.iter().map(|(column, names)| (*column, option(names))).collect());
    static PARTS: LazyLock<Regex> = LazyLock::new(|| option(LAYERS_OF_PARTS));
    let text = run.notes.to_lowercase();
    let of_columns = COLUMNS.iter().filter_map(|(column, option)| Some((*column, number(&text, option)?)));
    // (More ranks than devices are of another run.)
    let is_of_run = |(column, n): &(&str, u64)| *column == "mbs" || *n <= run.degree("n_devices");
    let mut found: Vec<(&'static str, u64)> = of_columns.filter(is_of_run).collect();
    let of = |column: &str| found.iter().find(|(name, _)| *name == column).map(|(_, n)| *n);
    let (pp, layers) = (run.number("pp").or(of("pp")).unwrap_or(1), run.degree("layers"));
    let parts = || number(&text, &PARTS).map(|some| some * pp).filter(|some| layers.is_multiple_of(*some));
    let vpp = of("vpp").or_else(|| parts().map(|some| layers / some)).filter(|_| pp > 1);
    found.retain(|(column, _)| *column != "vpp");
    found.extend(vpp.map(|vpp| ("vpp", vpp)));
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
        let notes = "--tensor-model-parallel-size 2 --expert_tensor_parallel_size=1, \
                     --pipeline-model-parallel-size 4, num_layers_per_virtual_pipeline_stage: 3; micro-batch-size 2";
        let of = |run: &Run| ["tp", "etp", "pp", "vpp", "ep", "mbs"].map(|column| run.number(column));
        let filled = with_degrees(&run("", "", notes));
        assert_eq!(of(&filled), [Some(2), Some(1), Some(4), Some(4), None, Some(2)]);
        assert_eq!(heard(&filled), ["etp = 1", "tp = 2", "pp = 4", "mbs = 2", "vpp = 4"]);
        let stated = with_degrees(&run(",tp,vpp", ",8,1", notes));
        assert_eq!(of(&stated)[..4], [Some(8), Some(1), Some(4), Some(1)]);
        assert_eq!(heard(&stated)[1], "tp = 8 (its notes say 2)");
    }

    /// Virtual stages are no stages, and options of something else are none of a run's; so is what is no whole number, is more than there are devices, or is said in two ways.
    #[test]
    fn an_option_is_not_a_part_of_another() {
        let of = |notes: &str| {
            let filled = with_degrees(&run("", "", notes));
            ["tp", "etp", "pp", "vpp", "mbs"].map(|column| filled.number(column))
        };
        let none = [None; 5];
        for notes in [
            "virtual_pipeline_model_parallel_size=2",
            "virtual_pipeline_model_parallel_size=None, tensor_model_parallel_size=1.5",
            "tensor_model_parallel_size=0, hierarchical_context_parallel_sizes 2 4",
            "eval_micro_batch_size=4; encoder_tensor_model_parallel_size=4; max-local-batch-size 2",
            "tensor_parallel_size=-2, micro_batch_size=1/2",
            "micro batch size 4M tokens; local_batch_size=8192 tokens",
            "virtual pipeline parallel size 2, expert tensor parallel size 4",
            "tensor_parallel_size=128; tensor parallel size of 8; validation.local_batch_size=4",
            "tensor_parallel_size=2; tensor-parallel-size 4; micro_batch_size=4-8",
        ] {
            assert_eq!(of(notes), none, "{notes}");
        }
        assert_eq!(of("expert_tensor_parallel_size=4"), [None, Some(4), None, None, None]);
        // 48 layers in 4 stages are no parts of 5.
        assert_eq!(
            of("pipeline_model_parallel_size=4, num_layers_per_virtual_pipeline_stage=5")[2..4],
            [Some(4), None]
        );
        assert_eq!(of("pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=2")[3], Some(2));
        assert_eq!(of("train_micro_batch_size_per_gpu=4, eval_batch_size=3")[4], Some(4));
        assert_eq!(of("'local_batch_size': 3, (training.local_batch_size=3)")[4], Some(3));
    }
}
