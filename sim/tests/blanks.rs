//! Tables with blanks, and with runs that did not fit into memory.

use forebay_cost::known;
use forebay_sim::validate::summary::Summary;
use forebay_sim::validate::{Compared, predict, runs};

const HEAD: &str =
    "id,layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,tp,pp,vpp,dp,mbs,gbs,recompute,step_time_s";

fn compared(rows: &[&str]) -> Compared {
    let table = runs::read(&format!("{HEAD}\n{}\n", rows.join("\n"))).expect("a table");
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
