//! The cluster file of a machine that was measured.

use super::Calibration;
use super::samples::Samples;
use std::fmt::Write;

/// The file. Devices are ranks; what stands in `[device]` is the whole machine, which they share.
pub fn text(calibration: &Calibration, samples: &Samples) -> String {
    let Calibration {
        cpu,
        cores,
        peak_gflops,
        peak_bf16_gflops,
        memory_gbps,
        memory_gb,
        kernel_us,
        link_gbps,
        latency_us,
        communication_work,
        ..
    } = calibration;
    // A name is shown, and stands in quotes.
    let cpu: String = cpu.chars().filter(|c| !c.is_control() && !matches!(c, '"' | '\\')).collect();
    let disturbed = calibration
        .disturbance()
        .map_or_else(String::new, |what| format!("# Measured again when the machine is idle it is better: {what}.\n"));
    let [tflops, bf16] = [peak_gflops, peak_bf16_gflops].map(|peak| (peak / 1e3).max(1e-6));
    let mut out = format!(
        "# This machine, as `forebay calibrate --cpu` measured it. Its devices are ranks, which share the cores; [device] is the whole machine.
{disturbed}name = \"{cpu}, {cores} cores\"

[device]
name = \"{cpu}\"
cores = {cores}
vector_tflops = {tflops:.6}
memory_gb = {memory_gb:.3}
memory_gbps = {memory_gbps:.3}
cache_mb = 1
source = \"measured: multiply-adds in registers or tiles, STREAM's triad; vector_tflops and cache_mb are not used\"

[device.cube]
bf16 = {bf16:.6}
f32 = {tflops:.6}

# Only kernel_us counts: everything else is in the samples and in the tier.
[calibrated]
product_efficiency = 1.0
product_depth = 0
attention_efficiency = 1.0
memory_efficiency = 1.0
kernel_us = {kernel_us:.3}
link_efficiency = 1.0
network_efficiency = 1.0
overlap_slowdown = 0

[[tier]]
name = \"machine\"
gbps = {:.3}
latency_us = {latency_us:.3}
source = \"measured: sums and gathers of ranks\"

[measured]
cores = {cores}
communication_work = {communication_work:.3}
",
        link_gbps.max(1e-3)
    );
    for (table, keys, rate) in samples.rows() {
        let unit = if table == "vector" { "gbps" } else { "gflops" };
        writeln!(out, "[[measured.{table}]]\n{keys}\n{unit} = {:.4}", (rate / 1e9).max(1e-4))
            .expect("strings can be written");
    }
    for (ranks, factor) in &calibration.sharing {
        writeln!(out, "[[measured.sharing]]\nranks = {ranks}\nfactor = {factor:.4}").expect("strings can be written");
    }
    out
}
