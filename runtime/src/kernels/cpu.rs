//! Which instructions the kernels may use.

use std::sync::OnceLock;

/// A level of CPU features, never above what this machine has: a value of this type is the licence to call the code compiled for it.
///
/// Matrix products and attention may differ in their last bits between `portable` and the others (which fuse multiplication and addition there), and those of bf16
/// between `avx512bf16` (which sums pairs of products, takes denormal numbers for zeros, and in attention rounds to bf16 what it multiplies) and the others. Everything else gives equal
/// bits at every level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    level: Level,
    jit: Jit,
    /// Are products of bf16 to be summed as `avx512bf16` does, by other instructions? See [`Cpu::emulating_pairs`].
    #[cfg(test)]
    emulates_pairs: bool,
}

/// Are regions compiled to machine code?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Jit {
    /// Never.
    Off,
    /// Where that is faster.
    #[default]
    Auto,
    /// Wherever it can be done.
    On,
}

impl Jit {
    /// The mode of this name: `off`, `auto` or `on`.
    pub fn named(name: &str) -> Option<Jit> {
        match name {
            "off" => Some(Jit::Off),
            "auto" => Some(Jit::Auto),
            "on" => Some(Jit::On),
            _ => None,
        }
    }

    /// What the environment asks for (`FOREBAY_JIT`), so that whatever runs kernels can be run either way.
    fn asked() -> Jit {
        static ASKED: OnceLock<Jit> = OnceLock::new();
        *ASKED.get_or_init(|| std::env::var("FOREBAY_JIT").ok().and_then(|name| Jit::named(&name)).unwrap_or_default())
    }
}

/// The levels, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Whatever the target has at least.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same and BF16: products of pairs of bf16.
    Avx512Bf16,
}

impl Cpu {
    fn of(level: Level) -> Cpu {
        Cpu {
            level,
            jit: Jit::asked(),
            #[cfg(test)]
            emulates_pairs: false,
        }
    }

    /// The best level of this machine.
    pub fn detect() -> Cpu {
        Cpu::of(detected())
    }

    /// The level of this name (`avx512bf16`, `avx512`, `avx2`, `portable`), or what the machine has where that is less; nothing for another name.
    pub fn named(name: &str) -> Option<Cpu> {
        let level = match name {
            "portable" => Level::Portable,
            "avx2" => Level::Avx2,
            "avx512" => Level::Avx512,
            "avx512bf16" => Level::Avx512Bf16,
            _ => return None,
        };
        Some(Cpu::of(level.min(detected())))
    }

    /// The name that [`Cpu::named`] takes.
    pub fn name(self) -> &'static str {
        match self.level {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512bf16",
        }
    }

    /// The same level with regions compiled or not.
    pub fn with_jit(self, jit: Jit) -> Cpu {
        Cpu { jit, ..self }
    }

    pub(crate) fn jit(self) -> Jit {
        self.jit
    }

    pub(crate) fn level(self) -> Level {
        self.level
    }

    /// The same level with products of pairs of bf16, by other instructions where it lacks them: what is around that instruction is tested on
    /// every machine.
    #[cfg(test)]
    pub(crate) fn emulating_pairs(self) -> Cpu {
        Cpu { emulates_pairs: true, ..self }
    }

    #[cfg(test)]
    pub(crate) fn emulates_pairs(self) -> bool {
        self.emulates_pairs
    }
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let pairs = is_x86_feature_detected!("avx512bf16");
    match (avx2, avx512, pairs) {
        (true, true, true) => Level::Avx512Bf16,
        (true, true, false) => Level::Avx512,
        (true, false, _) => Level::Avx2,
        _ => Level::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Level {
    Level::Portable
}

/// Compiles an `#[inline(always)]` function for each CPU level: `by_cpu!(unsafe fn name / body(a: A, b: B))` makes `name(cpu, a, b)`, which calls `body(a, b)`
/// with the features of the level. Its contract is the body's.
macro_rules! by_cpu {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident / $body:ident $(<$($generic:ident: $bound:path),*>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name $(<$($generic: $bound),*>)? (cpu: $crate::kernels::cpu::Cpu, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                unsafe fn avx512 $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's contract.
                    unsafe { $body $(::<$($generic),*>)? ($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                unsafe fn avx2 $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's contract.
                    unsafe { $body $(::<$($generic),*>)? ($($arg),*) }
                }
                match cpu.level() {
                    // SAFETY: a `Cpu` is never above what the machine has; the rest is the caller's contract.
                    $crate::kernels::cpu::Level::Avx512 | $crate::kernels::cpu::Level::Avx512Bf16 => {
                        return unsafe { avx512 $(::<$($generic),*>)? ($($arg),*) }
                    }
                    // SAFETY: as above.
                    $crate::kernels::cpu::Level::Avx2 => return unsafe { avx2 $(::<$($generic),*>)? ($($arg),*) },
                    $crate::kernels::cpu::Level::Portable => {}
                }
            }
            let _ = cpu;
            // SAFETY: the caller's contract.
            unsafe { $body $(::<$($generic),*>)? ($($arg),*) }
        }
    };
}
pub(crate) use by_cpu;
