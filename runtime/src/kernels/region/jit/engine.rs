//! From Cranelift's functions to memory that can be called.

use super::super::ops::Arg;
use crate::kernels::Buf;
use crate::kernels::cpu::{Cpu, Level};
use cranelift_codegen::ir::{AbiParam, Function, Signature, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Module, default_libcall_names};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What is called: operands and where accesses start, as a frame has them; buffers; the first column of the block, its rows and columns.
pub(super) type Entry = unsafe extern "C" fn(*const Arg, *const usize, *const Buf, usize, usize, usize);
/// Parameters of an [`Entry`].
pub(super) const PARAMETERS: usize = 6;

/// Machine code of a function.
pub(super) struct Code {
    /// Nothing once it has been given back.
    module: Option<JITModule>,
    entry: Entry,
    /// How long compiling took.
    pub time: Duration,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code").field("time", &self.time).finish_non_exhaustive()
    }
}

// SAFETY: the code does not change once it is finished; the module is only touched when it is dropped.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Runs it.
    ///
    /// # Safety
    /// Tables and buffers are those of the program that it was compiled from, set for the block.
    pub unsafe fn call(&self, operands: *const Arg, starts: *const usize, buffers: *const Buf, block: [usize; 3]) {
        let [first_column, rows, columns] = block;
        // SAFETY: the caller's contract; the memory of the entry lives as long as this.
        unsafe { (self.entry)(operands, starts, buffers, first_column, rows, columns) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: whoever could call the code holds a reference to this, of which there are none left.
            unsafe { module.free_memory() }
        }
    }
}

/// Instructions that code for a CPU level may use; nothing where Cranelift does not know the machine.
pub(super) fn target(cpu: Cpu) -> Option<&'static OwnedTargetIsa> {
    static PORTABLE: OnceLock<Option<OwnedTargetIsa>> = OnceLock::new();
    static NATIVE: OnceLock<Option<OwnedTargetIsa>> = OnceLock::new();
    // There are vectors of 128 bits only: from AVX2 on, levels have the same instructions.
    let (cell, infers) = if cpu.level() == Level::Portable { (&PORTABLE, false) } else { (&NATIVE, true) };
    cell.get_or_init(|| {
        let mut flags = settings::builder();
        for (name, value) in [("opt_level", "speed"), ("is_pic", "false"), ("unwind_info", "false")] {
            flags.set(name, value).ok()?;
        }
        let verifies = if cfg!(debug_assertions) { "true" } else { "false" };
        flags.set("enable_verifier", verifies).ok()?;
        let isa = cranelift_native::builder_with_options(infers).ok()?;
        isa.finish(settings::Flags::new(flags)).ok()
    })
    .as_ref()
}

/// The signature of an [`Entry`].
pub(super) fn signature(isa: &OwnedTargetIsa) -> Signature {
    let mut signature = Signature::new(isa.default_call_conv());
    let pointer = isa.pointer_type();
    debug_assert!(pointer == types::I64);
    signature.params.extend([AbiParam::new(pointer); PARAMETERS]);
    signature
}

/// Compiles a function; nothing where the machine lacks an instruction for it.
pub(super) fn compile(isa: &OwnedTargetIsa, make: impl FnOnce(&mut Function)) -> Option<Code> {
    let start = Instant::now();
    let mut module = JITModule::new(JITBuilder::with_isa(isa.clone(), default_libcall_names()));
    let entry = define(&mut module, isa, make);
    let Some(entry) = entry else {
        // SAFETY: nothing of it can be called.
        unsafe { module.free_memory() };
        return None;
    };
    // SAFETY: the function has been defined with the signature of an `Entry`.
    let entry = unsafe { std::mem::transmute::<*const u8, Entry>(entry) };
    Some(Code { module: Some(module), entry, time: start.elapsed() })
}

fn define(module: &mut JITModule, isa: &OwnedTargetIsa, make: impl FnOnce(&mut Function)) -> Option<*const u8> {
    let mut context = module.make_context();
    context.func.signature = signature(isa);
    make(&mut context.func);
    let id = module.declare_anonymous_function(&context.func.signature).ok()?;
    let defined = module.define_function(id, &mut context);
    debug_assert!(!matches!(&defined, Err(e) if e.to_string().contains("erifier")), "{defined:?}");
    defined.ok()?;
    module.finalize_definitions().ok()?;
    Some(module.get_finalized_function(id))
}
