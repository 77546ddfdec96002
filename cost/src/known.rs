//! The cluster files that come with the program.

use crate::cluster::Cluster;

/// Names, as `--cluster` takes them, and texts.
pub const FILES: [(&str, &str); 13] = [
    ("a100-40g", include_str!("../../examples/clusters/a100-40g.toml")),
    ("a100-80g", include_str!("../../examples/clusters/a100-80g.toml")),
    ("atlas-800t-a2", include_str!("../../examples/clusters/atlas-800t-a2.toml")),
    ("atlas-800t-a2-376t", include_str!("../../examples/clusters/atlas-800t-a2-376t.toml")),
    ("atlas-900-a3", include_str!("../../examples/clusters/atlas-900-a3.toml")),
    ("b200", include_str!("../../examples/clusters/b200.toml")),
    ("b300", include_str!("../../examples/clusters/b300.toml")),
    ("gb200-nvl72", include_str!("../../examples/clusters/gb200-nvl72.toml")),
    ("gb300-nvl72", include_str!("../../examples/clusters/gb300-nvl72.toml")),
    ("h100", include_str!("../../examples/clusters/h100.toml")),
    ("h100-96g-500w", include_str!("../../examples/clusters/h100-96g-500w.toml")),
    ("h200", include_str!("../../examples/clusters/h200.toml")),
    ("h800", include_str!("../../examples/clusters/h800.toml")),
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
}
