//! Running sums.

use super::{KernelCx, KernelError, PrepareCx, PrepareError, ensure, math};
use forebay_plan::{self as plan, DType};

/// Arrays side by side that a task takes.
const COLUMNS: usize = 64;

/// A prepared scan of `[outer, n, inner]` along n.
#[derive(Debug)]
pub(super) struct Scan {
    dtype: DType,
    outer: usize,
    n: usize,
    inner: usize,
    backward: bool,
    input: usize,
    out: usize,
}

impl Scan {
    pub(super) fn prepare(scan: &plan::Scan, cx: &PrepareCx) -> Result<Scan, PrepareError> {
        ensure(scan.dtype.is_number(), || format!("a scan of {}", scan.dtype))?;
        Ok(Scan {
            dtype: scan.dtype,
            outer: scan.outer as usize,
            n: scan.n as usize,
            inner: scan.inner as usize,
            backward: scan.backward,
            input: cx.buffer_of(scan.input, scan.dtype, "the input")?,
            out: cx.buffer_of(scan.out, scan.dtype, "the output")?,
        })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F32 => self.run_as::<f32, f32>(cx, |x| x, |x| x, |a, b| a + b),
                DType::F64 => self.run_as::<f64, f64>(cx, |x| x, |x| x, |a, b| a + b),
                DType::I32 => self.run_as::<i32, i32>(cx, |x| x, |x| x, i32::wrapping_add),
                DType::Bf16 => self.run_as::<u16, f32>(cx, math::widened, math::narrowed, |a, b| a + b),
                DType::I16 | DType::Bool => unreachable!("refused when prepared"),
            }
        }
        Ok(())
    }

    unsafe fn run_as<X: Copy, T: Copy + Default>(
        &self,
        cx: &KernelCx,
        widen: impl Fn(X) -> T + Sync,
        narrow: impl Fn(T) -> X + Sync,
        add: impl Fn(T, T) -> T + Sync,
    ) {
        let across = self.inner.div_ceil(COLUMNS);
        let work = self.n * COLUMNS.min(self.inner);
        cx.pool.run_ranges(self.outer * across, 16384usize.div_ceil(work.max(1)), &|first, end, _| {
            for task in first..end {
                let column = task % across * COLUMNS;
                let columns = COLUMNS.min(self.inner - column);
                let base = task / across * self.n * self.inner + column;
                let mut sums = [T::default(); COLUMNS];
                for step in 0..self.n {
                    let i = if self.backward { self.n - 1 - step } else { step };
                    for (c, sum) in sums[..columns].iter_mut().enumerate() {
                        let at = base + i * self.inner + c;
                        // SAFETY: both arrays have `outer·n·inner` elements (the caller's contract); tasks have columns of their own.
                        unsafe {
                            *sum = add(*sum, widen(*cx.buffers[self.input].ptr.cast::<X>().add(at)));
                            *cx.buffers[self.out].ptr.cast::<X>().add(at) = narrow(*sum);
                        }
                    }
                }
            }
        });
    }
}
