//! What hardly any vector needs, behind the function.

use super::{Emitter, far, round};

/// A place that jumps there.
pub(super) enum Rare {
    /// Two vectors that are rounded.
    Denormals(round::Denormals),
    /// A sine.
    Far(far::Far),
}

impl Emitter<'_> {
    /// What is behind the function.
    pub(super) fn rare_ways(&mut self) {
        let mut calls = vec![];
        for rare in std::mem::take(&mut self.rare) {
            match rare {
                Rare::Denormals(vectors) => self.store_denormals(vectors),
                Rare::Far(vector) => calls.push(self.ask(vector)),
            }
        }
        if !calls.is_empty() {
            self.call_general(calls);
        }
    }
}
