//! The formula of products, with the efficiencies of the cluster files, against products on AMD Instinct that others published (`kernels_instinct.csv`).

use forebay_cost::known::clusters;
use forebay_cost::{Precision, Product};

struct Row {
    device: &'static str,
    product: Product,
    /// Seconds.
    measured: f64,
}

fn rows() -> Vec<Row> {
    let lines = include_str!("kernels_instinct.csv").lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [groups, m, n, k, tflops] = [1, 2, 3, 4, 5].map(|i| cells[i].parse::<f64>().expect("a number"));
        let bytes = 2.0 * groups * (m * k + k * n + m * n);
        let product = Product { groups, m, n, k, bytes, precision: Precision::Bf16, alignment: Product::ALIGNED };
        Row { device: cells[0], product, measured: 2.0 * groups * m * n * k / (tflops * 1e12) }
    };
    lines.map(read).collect()
}

/// Dense products of many shapes, and those of experts in one kernel.
#[test]
fn products_take_as_long_as_published() {
    let clusters = clusters();
    for (device, count, median_below, most_below) in
        [("MI300X", 4, 0.07, 0.13), ("MI325X", 2, 0.1, 0.1), ("MI355X", 23, 0.1, 0.2)]
    {
        let cluster = clusters.iter().find(|cluster| cluster.is_called(device)).expect("a cluster");
        let of = rows().into_iter().filter(|row| row.device == device);
        let mut sizes: Vec<f64> = of.map(|row| (cluster.product(&row.product) / row.measured - 1.0).abs()).collect();
        sizes.sort_by(f64::total_cmp);
        println!("{device}: {sizes:.3?}");
        assert_eq!(sizes.len(), count, "{device}");
        assert!(sizes[count / 2] < median_below && sizes[count - 1] < most_below, "{device}: {sizes:?}");
    }
}
