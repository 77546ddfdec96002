//! Tables with blanks, and with runs that did not fit into memory.

use forebay_cost::known;
use forebay_sim::validate::summary::Summary;
use forebay_sim::validate::{Compared, predict, runs};

const HEAD: &str =
    "id,layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,tp,pp,vpp,dp,mbs,gbs,recompute,step_time_s";

fn compared(rows: &[&str]) -> Compared {
    of_table(&format!("{HEAD}\n{}\n", rows.join("\n")))
}

fn of_table(text: &str) -> Compared {
    let table = runs::read(text).expect("a table");
    assert_eq!(table.bad, []);
    let compared = predict(&table.runs, &known::clusters(), 1);
    assert_eq!(compared.skipped, []);
    compared
}

/// A blank is what is fastest of what fits: nothing is computed again where memory is enough, everything where only that fits.
#[test]
fn blanks_are_filled_by_what_is_fastest_and_fits() {
    let small = "small,8,1024,4096,8,32000,1024,H100,4,1,4,,1,,16,,1";
    let large = "large,8,8192,28672,64,32000,8192,H100,8,8,1,1,1,48,48,,1";
    let rows = compared(&[small, large]).rows;
    let assumed = |id: &str| rows.iter().find(|r| r.id == id).expect("it is there").assumed.join(", ");
    let chosen = assumed("small");
    assert!(chosen.contains("recompute = none") && chosen.contains("vpp = ") && chosen.contains("mbs = "), "{chosen}");
    assert!(assumed("large").contains("recompute = full"), "{}", assumed("large"));
    // Nothing that could have been taken instead is faster.
    let all = [
        "small,8,1024,4096,8,32000,1024,H100,4,1,4,1,1,1,16,none,1",
        "s2,8,1024,4096,8,32000,1024,H100,4,1,4,2,1,2,16,none,1",
    ];
    let best = rows[0].predicted_s;
    assert!(compared(&all).rows.iter().all(|r| r.predicted_s >= best * (1.0 - 1e-9)));
}

#[test]
fn runs_that_do_not_fit_are_told_from_those_that_do() {
    let rows = [
        "ran-1,2,1024,4096,8,32000,1024,H100,1,1,1,1,1,1,2,none,0.1",
        "ran-2,2,1024,4096,8,32000,1024,H100,1,1,1,1,1,2,2,none,0.1",
        // 12 billion parameters with their moments on one device; and one that has room by any account.
        "died-1,16,8192,28672,64,32000,1024,H100,1,1,1,1,1,1,2,none,OOM",
        "died-2,2,1024,4096,8,32000,1024,H100,1,1,1,1,1,1,2,none,oom",
    ];
    let summary = Summary::new(compared(&rows));
    assert_eq!((summary.rows.len(), summary.out_of_memory.len()), (2, 2));
    let fits = summary.fits.expect("there are runs of both kinds");
    assert_eq!((fits.ran, fits.out_of_memory), ((2, 2), (2, 1)));
    assert!((fits.balanced_accuracy - 0.75).abs() < 1e-12 && fits.near.is_none());
    assert!(Summary::new(compared(&rows[..2])).fits.is_none());
}

/// What nobody says ranks share they share where a device cannot hold it otherwise, and that is told: parameters of 7 billion do not fit beside their optimizer's state.
#[test]
fn ranks_share_what_does_not_fit() {
    let assumed = |source: &str, layers: u32| {
        let table = format!(
            "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,tp,dp,mbs,gbs,precision,recompute,step_time_s\n\
             a-1,{source},{layers},4096,11008,32,128,32000,2048,H100,8,1,8,1,8,BF16,full,1\n"
        );
        of_table(&table).rows.remove(0).assumed.into_iter().filter(|what| what.starts_with("zero")).collect::<Vec<_>>()
    };
    assert_eq!(assumed("a trainer", 4), ["zero = 0"]);
    assert_eq!(assumed("a trainer", 32), ["zero = 2"]);
    assert_eq!(assumed("Megatron-LM", 32), ["zero = 1"]);
    assert_eq!(assumed("a trainer; DDP", 32), ["zero = 0"]);
    assert_eq!(assumed("a trainer; offload_optimizer", 32), ["zero = 0"], "two thirds of it are on hosts");
    assert_eq!(assumed("a trainer with ZeRO-3", 32), Vec::<String>::new());
}

/// A run that ran out of memory is not taken to have shared what it did not say.
#[test]
fn what_ran_out_of_memory_shared_nothing() {
    let table = "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,tp,dp,mbs,gbs,precision,recompute,step_time_s\n\
         a-1,a trainer,32,4096,11008,32,128,32000,2048,H100,8,1,8,1,8,BF16,full,OOM\n";
    let run = of_table(table).out_of_memory.remove(0);
    assert!(run.needed_mem_gb > run.device_mem_gb, "{run:?}");
}

/// Parts of notes that change nothing are told, whatever their row's source says; what changes something, or denies it, is not.
#[test]
fn words_that_change_nothing_are_told() {
    let table = "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,tp,dp,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
         a-1,NeMo with DeepEP,1,2048,8192,16,128,32000,2048,H100,8,2,4,1,8,BF16,none,1,\"overlap-grad-reduce=false, loss fusion; no flash attention; 3; ZeRO-1, gradient_checkpointing=True; NUMA; tied embeddings\"\n";
    assert_eq!(of_table(table).rows[0].unread, ["loss fusion", "NUMA"]);
    // What is read together changes something where it is left out.
    let json = table.replace(
        "overlap-grad-reduce=false, loss",
        "\"\"zero_optimization\"\": {\"\"overlap_comm\"\": true, \"\"stage\"\": 3}; loss",
    );
    assert_eq!(of_table(&json).rows[0].unread, ["loss fusion", "NUMA"]);
}

/// Degrees that are blank are those of options in notes, which is told; those that are not are as their columns say.
#[test]
fn blank_degrees_are_those_of_options() {
    let notes = "--tensor-model-parallel-size 2 --micro-batch-size 2, exp_avg_dtype=bf16";
    let table = format!(
        "id,source,layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,tp,mbs,gbs,recompute,step_time_s,notes_config\n\
         a,NeMo,2,2048,8192,16,32000,2048,H100,8,,,16,none,1,\"{notes}\"\n\
         b,NeMo,2,2048,8192,16,32000,2048,H100,8,4,1,16,none,1,\"{notes}\"\n"
    );
    let rows = of_table(&table).rows;
    assert!(rows[0].strategy.contains("dp=4,tp=2") && rows[0].strategy.contains("mbs=2"), "{}", rows[0].strategy);
    assert!(rows[1].strategy.contains("dp=2,tp=4") && rows[1].strategy.contains("mbs=1"), "{}", rows[1].strategy);
    assert_eq!(rows[0].heard, ["tp = 2", "mbs = 2", "moments = bf16"]);
    assert_eq!(rows[1].heard[..2], ["tp = 4 (its notes say 2)", "mbs = 1 (its notes say 2)"]);
    assert!(rows.iter().all(|row| row.unread.is_empty()));
}

/// Documents that rows are packed with are as long as rows where nobody says how long, and that is told; attention stays within shorter ones.
#[test]
fn documents_are_as_long_as_rows_unless_notes_say_so() {
    let of = |notes: &str| {
        let table = format!(
            "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,cp,dp,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
             a-1,a trainer,2,2048,8192,16,128,32000,16384,H100,8,2,4,1,8,BF16,none,1,{notes}\n"
        );
        let row = of_table(&table).rows.remove(0);
        assert_eq!(row.unread, Vec::<String>::new(), "{notes}");
        (row.predicted_s, row.assumed.iter().any(|what| what == "documents as long as rows"))
    };
    // Whoever tells of TFLOP/s counts whole rows.
    let measured = |notes: &str| {
        let table = format!(
            "id,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,dp,mbs,gbs,precision,recompute,tflops_per_device,notes_config\n\
             a-1,2,2048,8192,16,128,32000,16384,H100,8,8,1,8,BF16,none,400,{notes}\n"
        );
        of_table(&table).rows.remove(0).measured_s
    };
    assert_eq!(measured("document length 512"), measured(""));
    let (whole, told) = of("");
    assert!(!told);
    assert_eq!((of("packing true"), of("document length 16384")), ((whole, true), (whole, false)));
    let [short, shorter] = ["packing true; document length 4096", "packing true; document length 512"].map(of);
    assert!(!short.1 && shorter.0 < short.0 && short.0 < 0.8 * whole, "{shorter:?} {short:?} {whole}");
}

/// What is taken for a word that a row lacks, and for a number that cannot be, is told.
#[test]
fn what_is_taken_unasked_is_told() {
    let head = "id,source,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,vocab,seq_len,device,n_devices,tp,pp,dp,ep,etp,mbs,gbs,recompute,notes_config,step_time_s";
    let row = |id: &str, source: &str, rest: &str| {
        format!("{id},{source},2,1024,4096,1024,8,2,8,32000,1024,Ascend 910B,8,{rest},1\n")
    };
    let rows = of_table(&format!(
        "{head}\n{}{}{}",
        row("silent", "MindSpeed-LLM", "1,1,8,8,2,1,16,none,"),
        row("flash", "MindSpeed-LLM", "2,1,4,4,2,1,16,none,flash attention"),
        row("denied", "MindSpeed-LLM", "2,1,4,4,1,1,16,none,no flash attention"),
    ))
    .rows;
    let told = |id: &str| rows.iter().find(|r| r.id == id).expect("it is there").assumed.join(", ");
    assert!(told("silent").contains("attention = unfused"), "{}", told("silent"));
    assert!(told("silent").contains("etp = 1 (the row says 2, which is more than tp)"), "{}", told("silent"));
    for id in ["flash", "denied"] {
        assert!(!told(id).contains("attention") && !told(id).contains("etp"), "{id}: {}", told(id));
    }
}
