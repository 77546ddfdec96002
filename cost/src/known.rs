//! The cluster files that come with the program.

use crate::cluster::Cluster;

/// Names, as `--cluster` takes them, and texts.
pub const FILES: [(&str, &str); 27] = [
    ("a100-40g", include_str!("../../examples/clusters/a100-40g.toml")),
    ("a100-80g", include_str!("../../examples/clusters/a100-80g.toml")),
    ("a800", include_str!("../../examples/clusters/a800.toml")),
    ("atlas-800t-a2", include_str!("../../examples/clusters/atlas-800t-a2.toml")),
    ("atlas-800t-a2-376t", include_str!("../../examples/clusters/atlas-800t-a2-376t.toml")),
    ("atlas-900-a3", include_str!("../../examples/clusters/atlas-900-a3.toml")),
    ("b200", include_str!("../../examples/clusters/b200.toml")),
    ("b300", include_str!("../../examples/clusters/b300.toml")),
    ("gb200-nvl72", include_str!("../../examples/clusters/gb200-nvl72.toml")),
    ("gb300-nvl72", include_str!("../../examples/clusters/gb300-nvl72.toml")),
    ("gh200", include_str!("../../examples/clusters/gh200.toml")),
    ("h100", include_str!("../../examples/clusters/h100.toml")),
    ("h100-96g-500w", include_str!("../../examples/clusters/h100-96g-500w.toml")),
    ("h20", include_str!("../../examples/clusters/h20.toml")),
    ("h200", include_str!("../../examples/clusters/h200.toml")),
    ("h800", include_str!("../../examples/clusters/h800.toml")),
    ("mi300x", include_str!("../../examples/clusters/mi300x.toml")),
    ("mi325x", include_str!("../../examples/clusters/mi325x.toml")),
    ("mi350x", include_str!("../../examples/clusters/mi350x.toml")),
    ("mi355x", include_str!("../../examples/clusters/mi355x.toml")),
    ("tpu-v4", include_str!("../../examples/clusters/tpu-v4.toml")),
    ("tpu-v5e", include_str!("../../examples/clusters/tpu-v5e.toml")),
    ("tpu-v5p", include_str!("../../examples/clusters/tpu-v5p.toml")),
    ("tpu-v6e", include_str!("../../examples/clusters/tpu-v6e.toml")),
    ("tpu-v7x", include_str!("../../examples/clusters/tpu-v7x.toml")),
    ("v100-16g", include_str!("../../examples/clusters/v100-16g.toml")),
    ("v100-32g", include_str!("../../examples/clusters/v100-32g.toml")),
];

/// All of them.
pub fn clusters() -> Vec<Cluster> {
    FILES.iter().map(|(_, text)| Cluster::parse(text).expect("a file of the program is right")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_file_is_right_and_has_names_of_its_own() {
        let clusters = super::clusters();
        for (i, a) in clusters.iter().enumerate() {
            for b in &clusters[..i] {
                assert!(a.aliases.iter().all(|name| !b.is_called(name)), "{} and {}", a.name, b.name);
            }
        }
    }

    /// What tables of runs call devices.
    #[test]
    fn devices_are_found_by_their_usual_names() {
        let clusters = super::clusters();
        let names = [
            "H100",
            "a100-80g",
            "A800",
            "H20",
            "V100-16G",
            "V100",
            "MI300X",
            "MI355X",
            "TPU v4",
            "tpu-v5p",
            "Trillium",
            "Ascend 910B (Atlas A2)",
            "H100 (SXM5)",
            "A100 (40 GB)",
            "A100 [40GB]",
            "A100 (80GB, NVLink)",
            "H100-96G (HBM2e, 500 W)",
            "H200 (141GB)",
        ];
        for name in names {
            assert_eq!(clusters.iter().filter(|cluster| cluster.is_called(name)).count(), 1, "{name}");
        }
        // As drivers and clouds call them.
        let longer = [
            ("NVIDIA A100-SXM4-80GB", "A100-80G"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("H100 80GB", "H100"),
            ("TPU v5p-128", "TPU v5p"),
            ("v5e-256", "TPU v5e"),
            ("AMD Instinct MI300X", "MI300X"),
        ];
        for (name, of) in longer {
            let mut called = clusters.iter().filter(|cluster| cluster.is_called(name));
            assert!(called.next().is_some_and(|cluster| cluster.is_called(of)) && called.next().is_none(), "{name}");
        }
        for another in ["H100 PCIe", "H100 (PCIe)", "H100 (NVL)", "H100 40GB", "H100 (40 GB)", "H100 (500 W)", "(SXM5)"]
        {
            assert!(clusters.iter().all(|cluster| !cluster.is_called(another)), "{another}");
        }
    }
}
