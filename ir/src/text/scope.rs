//! What has been declared so far in the graph that is being parsed.

use super::lex::{Cursor, Fault, Name, Result, shown};
use crate::graph::{Graph, ValueId};
use crate::types::{AxisId, DType, Type};
use rustc_hash::FxHashMap;

/// The graph so far and its names. `None` stands for a declaration with an error in it: its uses are not errors of their own.
pub(super) struct Scope {
    pub(super) graph: Graph,
    axes: FxHashMap<String, (usize, Option<AxisId>)>,
    values: FxHashMap<String, (usize, Option<ValueId>)>,
}

impl Scope {
    pub(super) fn new(name: String) -> Scope {
        Scope { graph: Graph::new(name), axes: FxHashMap::default(), values: FxHashMap::default() }
    }

    /// Is the axis's name free?
    pub(super) fn check_new_axis(&self, name: &Name) -> Result<()> {
        match self.axes.get(&name.text) {
            None => Ok(()),
            Some((line, _)) => {
                Err(Fault::new(name.range.clone(), format!("axis `{}` was declared in line {line}", shown(&name.text))))
            }
        }
    }

    /// Is the value's name free?
    pub(super) fn check_new_value(&self, name: &Name) -> Result<()> {
        match self.values.get(&name.text) {
            None => Ok(()),
            Some((line, _)) => {
                Err(Fault::new(name.range.clone(), format!("`%{}` was defined in line {line}", shown(&name.text))))
            }
        }
    }

    /// Keeps the first declaration of a name.
    pub(super) fn declare_axis(&mut self, name: Name, line: usize, axis: Option<AxisId>) {
        self.axes.entry(name.text).or_insert((line, axis));
    }

    /// Keeps the first definition of a name.
    pub(super) fn define_value(&mut self, name: Name, line: usize, value: Option<ValueId>) {
        self.values.entry(name.text).or_insert((line, value));
    }

    /// A declared axis.
    pub(super) fn axis(&self, cursor: &mut Cursor<'_>) -> Result<AxisId> {
        let name = cursor.name("an axis")?;
        match self.axes.get(&name.text) {
            Some((_, Some(axis))) => Ok(*axis),
            Some((_, None)) => Err(Fault::silent()),
            None => Err(Fault::new(name.range, format!("there is no axis `{}`", shown(&name.text)))),
        }
    }

    /// One axis or more, with commas between.
    pub(super) fn axes(&self, cursor: &mut Cursor<'_>) -> Result<Vec<AxisId>> {
        let mut axes = vec![self.axis(cursor)?];
        while cursor.eat(",") {
            axes.push(self.axis(cursor)?);
        }
        Ok(axes)
    }

    /// One mesh dimension or more, with commas between.
    pub(super) fn mesh_dims(&self, cursor: &mut Cursor<'_>) -> Result<Vec<u32>> {
        let mut dims = vec![];
        loop {
            let name = cursor.name("a mesh dimension")?;
            let dim =
                self.graph.mesh.iter().position(|d| d.name == name.text).ok_or_else(|| {
                    Fault::new(name.range, format!("there is no mesh dimension `{}`", shown(&name.text)))
                })?;
            dims.push(dim as u32);
            if !cursor.eat(",") {
                return Ok(dims);
            }
        }
    }

    /// `{d, f}` as the sorted set it stands for.
    pub(super) fn axis_set(&self, cursor: &mut Cursor<'_>) -> Result<Vec<AxisId>> {
        cursor.expect("{")?;
        let start = cursor.start();
        let mut axes = self.axes(cursor)?;
        let end = cursor.end();
        cursor.expect("}")?;
        axes.sort_unstable();
        match axes.windows(2).find(|w| w[0] == w[1]) {
            None => Ok(axes),
            Some(twice) => {
                Err(Fault::new(start..end, format!("axis `{}` stands here twice", self.graph.axis(twice[0]).name)))
            }
        }
    }

    /// A value that has been defined.
    pub(super) fn value(&self, cursor: &mut Cursor<'_>) -> Result<ValueId> {
        self.resolve(&cursor.signed_name("%", "a value (`%name`)")?)
    }

    /// The value of a name.
    pub(super) fn resolve(&self, name: &Name) -> Result<ValueId> {
        match self.values.get(&name.text) {
            Some((_, Some(value))) => Ok(*value),
            Some((_, None)) => Err(Fault::silent()),
            None => Err(Fault::new(name.range.clone(), format!("there is no `%{}` above", shown(&name.text)))),
        }
    }

    /// Values with commas between, maybe none.
    pub(super) fn values(&self, cursor: &mut Cursor<'_>) -> Result<Vec<ValueId>> {
        let mut values = Vec::new();
        if cursor.sees("%") {
            values.push(self.value(cursor)?);
            while cursor.eat(",") {
                values.push(self.value(cursor)?);
            }
        }
        Ok(values)
    }

    /// `f32[batch, d]` or `f32`.
    pub(super) fn ty(&self, cursor: &mut Cursor<'_>) -> Result<Type> {
        let wanted = "an element type (`f64`, `f32`, `bf16`, `i32` or `bool`)";
        let Some(dtype) = DType::from_name(cursor.peek_word()) else {
            return Err(cursor.unexpected(wanted));
        };
        cursor.expect(dtype.name())?;
        let mut axes = Vec::new();
        if cursor.eat("[") && !cursor.eat("]") {
            axes = self.axes(cursor)?;
            cursor.expect("]")?;
        }
        Ok(Type::new(dtype, axes))
    }
}
