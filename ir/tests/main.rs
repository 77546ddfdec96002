//! Ops: text, types, gradients, costs, meaning.

mod cost;
mod gradient;
mod reference;
mod testing;
mod text;
mod verify;
