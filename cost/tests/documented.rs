//! The cluster file that `docs/cluster-files.md` shows is one.

use forebay_cost::Cluster;

#[test]
fn the_documented_file_is_a_cluster() {
    let text = include_str!("../../docs/cluster-files.md");
    let file = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of TOML");
    let cluster = Cluster::parse(file).expect("a cluster");
    assert!(cluster.is_called("A6000") && cluster.calibrated.estimated);
    // One adapter of 12.5 GB/s for eight devices.
    let network = cluster.tiers.last().expect("a tier");
    assert_eq!(network.gbps.0 * 8.0, 12.5);
    // Every key of the table is one of some file, at the beginning of a line.
    let table = text.split("| table | key |").nth(1).expect("a table");
    let cells = table.lines().filter_map(|row| row.split('|').nth(2));
    let keys: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(keys.len() > 20, "{keys:?}");
    let files = || forebay_cost::known::FILES.iter().map(|(_, file)| *file).chain([file]);
    for key in keys {
        let line = format!("\n{key} = ");
        assert!(files().any(|file| format!("\n{file}").contains(&line)), "`{key}` is in no file");
    }
}
