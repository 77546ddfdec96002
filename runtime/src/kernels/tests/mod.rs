//! Every kernel against a plain reference in f64, written here and independent of the kernels.

mod attention;
mod chains;
mod epilogue;
mod index;
mod linear;
mod lookup;
mod matmul;
mod reduce;
mod region;
pub(in crate::kernels) mod region_cases;
mod small;
