//! Peak memory that others measured, against what frameworks are said to hold.

use forebay_cost::known::clusters;
use forebay_sim::validate::{Row, predict, runs};

const TABLE: &str = include_str!("published_memory.csv");

fn rows(table: &str) -> Vec<Row> {
    predict(&runs::read(table).expect("a table").runs, &clusters(), 2).rows
}

/// Megatron-LM on 8 B200, dense models and mixtures, with tensor, pipeline, expert and context parallelism: what PyTorch had allocated at most (figures of SimuMax's
/// release summary; key heads of the 405B model as in its scripts). Nothing is fitted to them but the 0.15 GB of libraries. The largest error is of a stage
/// without a head, with two micro-batches in flight.
#[test]
fn allocated_memory_is_predicted_within_half_a_percent() {
    let rows = rows(TABLE);
    assert_eq!(rows.len(), 15);
    let error = |row: &Row| row.predicted_mem_gb / row.measured_mem_gb.expect("it is measured") - 1.0;
    for row in &rows {
        assert!(error(row).abs() < 0.005, "{}: {:+.2} %", row.id, 100.0 * error(row));
    }
    // Mixtures with multi-head latent attention.
    let mixtures: Vec<&Row> =
        rows.iter().filter(|row| row.id >= "simumax-005".into() && row.id <= "simumax-008".into()).collect();
    assert_eq!(mixtures.len(), 4);
    for row in mixtures {
        assert!(error(row).abs() < 0.001, "{}: {:+.2} %", row.id, 100.0 * error(row));
    }
}

/// nanotron on H100, seven layouts of four models: what PyTorch had reserved at most, in GiB (`slack` of its profile is fitted to some 250 others). The last two have a host that is far ahead of its
/// device, and one that is slower than it.
#[test]
fn reserved_memory_is_predicted_within_six_percent() {
    let rows = rows(include_str!("published_reserved.csv"));
    assert_eq!(rows.len(), 7);
    for row in &rows {
        let error = row.predicted_mem_gb / row.measured_mem_gb.expect("it is measured") - 1.0;
        assert!(error.abs() < 0.06, "{}: {:+.2} %", row.id, 100.0 * error);
        assert!(
            (row.device_mem_gb - 83.02e9 / (1u64 << 30) as f64).abs() < 1e-9,
            "its device is counted in GiB as well"
        );
    }
}

/// The more micro-batches there are, the less of a step is a bubble and the more of it waits for the host, whether they are replayed or added up: less of what was gathered stays.
#[test]
fn memory_goes_by_the_whole_steps_host() {
    let mut lines = include_str!("published_reserved.csv").lines();
    let mut table = format!("{}\n", lines.next().expect("names of columns"));
    let run = lines.find(|line| line.starts_with("nanotron-221")).expect("it is there");
    for batch in ["96", "128", "132", "256", "1024"] {
        let of = run.replace("nanotron-221", batch).replace(",8,8,1,1,1,1,1,256,", &format!(",8,8,1,1,1,1,4,{batch},"));
        table += &format!("{of}\n");
    }
    let found: Vec<(f64, f64)> =
        rows(&table).iter().map(|row| (row.report.own_host_fraction, row.predicted_mem_gb)).collect();
    assert_eq!(found.len(), 5);
    assert!(found.windows(2).all(|two| two[1].0 > two[0].0 && two[1].1 < two[0].1), "{found:?}");
}

/// A run whose allocator would have more than there is says so.
#[test]
fn a_run_that_is_short_of_memory_is_suspected_of_it() {
    let table = include_str!("published_reserved.csv");
    let suspected = |table: &str| rows(table).iter().map(|row| row.suspected.clone()).collect::<Vec<_>>();
    assert!(suspected(table).iter().all(|what| !what.starts_with("memory")), "{:?}", suspected(table));
    // Sixteen rows on eight tensor-parallel ranks: some 100 GB where programs may use 83.
    let short: String = table
        .lines()
        .filter(|line| line.starts_with("id,") || line.starts_with("nanotron-221"))
        .map(|line| {
            line.replace(",64,8,8,1,1,1,1,1,256,", ",128,8,1,1,1,1,16,16,256,").replace("stage 0", "stage 1") + "\n"
        })
        .collect();
    assert_eq!(suspected(&short), ["memory: the allocator runs short"], "{short}");
    let more = short.replace(",16,16,256,", ",16,32,512,");
    assert_eq!(suspected(&more), ["memory: more than there is"], "{more}");
}

/// Three of nanotron's runs took 5 to 8 times as long as work, messages and hosts do: the allocator of their first stage stops the device for each micro-batch, to get memory back. (They are
/// the best of thirteen: the others are within 30 % but for two. The first two are predicted to need 4 and 9 % more than there is, and ran.)
#[test]
fn a_crowded_device_stops_for_each_micro_batch() {
    let table = include_str!("published_crowded.csv");
    let (table, same) = table.split_once("nanotron-067").expect("the last run");
    let crowded = rows(table);
    assert_eq!(crowded.len(), 3);
    for row in &crowded {
        assert!(row.error.abs() < 0.05, "{}: {:+.2} %", row.id, 100.0 * row.error);
        let (waits, step) = (row.report.own_host_fraction, row.report.step_time_s);
        let parts: f64 = row.report.time_s.iter().map(|part| part.seconds).sum();
        assert!(waits > 0.05 && (parts / step - 1.0).abs() < 1e-9, "{parts} of {step}");
    }
    let suspected: Vec<&str> = crowded.iter().map(|row| row.suspected.as_str()).collect();
    assert_eq!(
        suspected,
        ["memory: more than there is", "memory: more than there is", "memory: the allocator runs short"]
    );
    // Half as many rows in a micro-batch, so twice as many micro-batches, fit without that. (The third has one row.)
    let half = table.replace(",2,4,256,BF16", ",2,2,256,BF16").replace(",4,2,256,BF16", ",4,1,256,BF16");
    for (row, of_half) in crowded.iter().zip(&rows(&half)).take(2) {
        assert!(of_half.predicted_s < row.predicted_s / 4.0, "{} and {}", of_half.predicted_s, row.predicted_s);
    }
    // One stage on one rank needs as much, and asks for the same again and again.
    let names = table.lines().next().expect("names of columns");
    let same = &rows(&format!("{names}\nnanotron-067{same}"))[0];
    assert!(same.needed_mem_gb > 0.91 * same.device_mem_gb && same.error.abs() < 0.1, "{:+.2} %", 100.0 * same.error);
    assert!(same.report.crowded_stages().is_empty() && !same.suspected.starts_with("memory"), "{}", same.suspected);
    // It is the same run whether its row tells of allocated memory or of reserved.
    let allocated = rows(&table.replace("tied embeddings", "max_memory_allocated, tied embeddings"));
    for (row, other) in crowded.iter().zip(&allocated) {
        assert_eq!(row.predicted_s, other.predicted_s);
        assert!(other.predicted_mem_gb < row.predicted_mem_gb && other.needed_mem_gb == row.needed_mem_gb);
    }
}

/// What is computed again is not kept: norms and activations a little, everything between products' inputs and the layer's own the most.
#[test]
fn what_is_computed_again_is_not_kept() {
    let of = |recompute: &str| rows(&TABLE.replace(",BF16,none,", &format!(",BF16,{recompute},")));
    let (none, some, all) = (of("none"), of("selective: layernorm act"), of("full"));
    for ((none, some), all) in none.iter().zip(&some).zip(&all) {
        let [none, some, all] = [none, some, all].map(|row| row.predicted_mem_gb);
        assert!(all < some && some < none, "{none} {some} {all}");
    }
}

/// A row says which of the two its peak is. Of the first run SimuMax's summary says what was reserved as well, 70.88 GiB.
#[test]
fn reserved_memory_is_more_than_allocated() {
    let reserved = rows(&TABLE.replace("max_memory_allocated", "max_memory_reserved"));
    for (allocated, reserved) in rows(TABLE).iter().zip(&reserved) {
        let more = reserved.predicted_mem_gb - allocated.predicted_mem_gb;
        assert!(more > 0.55 && more < 0.25 * allocated.predicted_mem_gb, "{}: {more} GB", reserved.id);
    }
    let first = reserved[0].predicted_mem_gb / (70.88 * (1u64 << 30) as f64 / 1e9) - 1.0;
    assert!(first.abs() < 0.03, "{first}");
}

/// Norms and activations that are made again are all of what products read of them, whichever kernel our plan makes them in: a region (SwiGLU) or the end of a product (GELU).
#[test]
fn all_norms_and_activations_can_be_dropped() {
    let peak = |model: &str, recompute: &str| {
        let table = format!(
            "id,source,model,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s\n\
             a,Megatron-LM,{model},16,1024,4096,8,128,1024,2048,H100,1,4,4,BF16,{recompute},1\n"
        );
        rows(&table)[0].predicted_mem_gb
    };
    for model in ["Llama", "GPT"] {
        let dropped = peak(model, "none") - peak(model, "selective: layernorm act");
        // Bytes of two norms and an activation in each layer; the layer at work has its own.
        let layer = 4.0 * 2048.0 * (2.0 * 1024.0 + 4096.0) * 2.0 / 1e9;
        assert!((14.9 * layer..16.1 * layer).contains(&dropped), "{model}: {} layers", dropped / layer);
    }
}

/// nanotron's rank 0 tells of its own memory: of the first stage, where the last, with logits of 131,072 words, needs more.
#[test]
fn memory_is_of_the_stage_that_tells_of_it() {
    let table = include_str!("published_reserved.csv");
    let names = table.lines().next().expect("names of columns");
    let run = table.lines().find(|line| line.starts_with("nanotron-001")).expect("it is there");
    let two = run.replace(",8,128,1,1,1,1,1,128,1,256,", ",8,128,1,2,1,1,1,64,4,256,");
    let row = &rows(&format!("{names}\n{two}\n"))[0];
    let stages: Vec<f64> = row.report.memory_bytes.iter().map(|stage| stage.peak / (1u64 << 30) as f64).collect();
    assert!(stages.len() == 2 && stages[1] > stages[0], "{stages:?}");
    assert_eq!([row.predicted_mem_gb, row.needed_mem_gb], stages[..]);
}

/// A loss in parts has the logits of one of them at a time: their values and gradients in bf16, and torchtitan's copies in f32 (10 bytes).
#[test]
fn losses_in_parts_have_a_part_of_the_logits() {
    let peak = |notes: &str| {
        let table = format!(
            "id,source,layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
             a,torchtitan,2,1024,2048,8,131072,4096,H100,1,4,4,BF16,full,1,\"{notes}\"\n"
        );
        rows(&table)[0].predicted_mem_gb
    };
    let logits = 4.0 * 4096.0 * 131_072.0 / 1e9;
    let saved = peak("max_memory_allocated") - peak("max_memory_allocated; ChunkedCELoss num_chunks=2");
    assert!((saved / (7.0 * logits) - 1.0).abs() < 0.001, "{saved} GB of {logits}");
}

/// Moments in bf16 are half as many bytes, four of each parameter less; masters that are the halves which copies lack two less.
#[test]
fn the_optimizers_state_is_kept_as_notes_say() {
    let state = |notes: &str| {
        let table = format!(
            "id,source,layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
             a,NeMo,4,2048,8192,16,32768,1024,H100,1,1,1,BF16,none,1,\"{notes}\"\n"
        );
        let stage = &rows(&table)[0].report.memory_bytes[0];
        [stage.weights, stage.optimizer]
    };
    let [usual, moments, masters] = ["", "exp_avg_dtype=bf16", "reuse-fp32-param"].map(state);
    let parameters = usual[1] / 8.0;
    assert_eq!(moments, [usual[0], usual[1] - 4.0 * parameters]);
    assert_eq!(masters, [usual[0] - 2.0 * parameters, usual[1]]);
}
