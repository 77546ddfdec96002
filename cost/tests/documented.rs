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
    // Every key of the tables that the page describes is in the files of the examples.
    for key in ["vector_beside_cube", "scale_up", "adapters", "links", "by_4", "efficiency", "context_gb"] {
        assert!(text.contains(&format!("`{key}`")), "{key}");
        let known = forebay_cost::known::FILES.iter().any(|(_, file)| file.contains(&format!("{key} = ")));
        assert!(known || key == "adapters", "{key} is in no file");
    }
}
