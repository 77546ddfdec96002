//! The parser. Statements are lines, so an error costs one line and the rest is still looked at.

use super::attributes;
use super::error::ParseError;
use super::lex::{Cursor, Fault, Name, Result, shown};
use super::scope::Scope;
use crate::collective::MeshDim;
use crate::graph::{Graph, Input, InputRole, Node, OutputRole, ValueId};
use crate::op::{LinearAttention, Op};
use crate::types::{Axis, AxisId, Extent, Type};
use crate::verify;

/// More errors than this tell nobody more.
const MAX_ERRORS: usize = 100;

/// In characters.
const MAX_MESSAGE: usize = 1000;

/// Keeps the numbers of values and axes, of which a byte declares less than one, within 32 bits.
const MAX_TEXT: usize = 1 << 30;

/// Reads a text with one graph.
///
/// # Errors
/// All that is wrong with the text, in order.
pub fn parse(text: &str) -> std::result::Result<Graph, Vec<ParseError>> {
    let mut graphs = parse_lines(text)?;
    match (graphs.pop(), graphs.pop()) {
        (Some((_, graph)), None) => Ok(graph),
        (None, _) => Err(vec![whole_line(1, "there is no graph in the text")]),
        (Some((line, _)), Some(_)) => Err(vec![whole_line(line, "there is more than one graph in the text")]),
    }
}

/// Reads a text with any number of graphs.
///
/// # Errors
/// All that is wrong with the text, in order.
pub fn parse_module(text: &str) -> std::result::Result<Vec<Graph>, Vec<ParseError>> {
    Ok(parse_lines(text)?.into_iter().map(|(_, graph)| graph).collect())
}

/// The graphs and the lines where they start.
fn parse_lines(text: &str) -> std::result::Result<Vec<(usize, Graph)>, Vec<ParseError>> {
    if text.len() > MAX_TEXT {
        return Err(vec![whole_line(1, "the text is longer than 1 GiB")]);
    }
    let mut module = Module::default();
    let mut last = 1;
    for (i, line) in text.lines().enumerate() {
        last = i + 1;
        module.line(last, line);
        if module.errors.len() >= MAX_ERRORS {
            module.errors.truncate(MAX_ERRORS);
            module.errors.push(whole_line(last, "too many errors: the rest was not read"));
            break;
        }
    }
    if module.errors.len() <= MAX_ERRORS {
        module.close(last, false);
    }
    if module.errors.is_empty() {
        return Ok(module.graphs);
    }
    // A group start that is missing is known at the end of its graph, but belongs to its line.
    module.errors.sort_by_key(|e| (e.line, e.column));
    Err(module.errors)
}

fn whole_line(line: usize, message: impl Into<String>) -> ParseError {
    ParseError { line, column: 1, width: 0, message: message.into() }
}

#[derive(Default)]
struct Module<'a> {
    graphs: Vec<(usize, Graph)>,
    errors: Vec<ParseError>,
    /// The graph whose lines are being read.
    body: Option<Body<'a>>,
    /// Was a line outside of all graphs reported since the last graph?
    is_lost: bool,
}

impl<'a> Module<'a> {
    fn line(&mut self, number: usize, line: &'a str) {
        let mut cursor = Cursor::new(line);
        if cursor.is_done() {
            return;
        }
        if self.body.is_some() && cursor.peek_word() == "graph" {
            self.close(number, false);
        }
        let mut faults = Vec::new();
        match &mut self.body {
            None => faults.extend(self.header(&mut cursor, number).err()),
            Some(_) if cursor.eat("}") => {
                faults.extend(cursor.expect_end().err());
                self.close(number, true);
            }
            Some(body) => {
                let result = body.statement(&mut cursor, number);
                faults.append(&mut body.faults);
                faults.extend(result.err());
            }
        }
        self.errors.extend(faults.into_iter().filter_map(|fault| error_at(number, line, fault)));
    }

    /// `graph @name {`.
    fn header(&mut self, cursor: &mut Cursor<'_>, number: usize) -> Result<()> {
        if !cursor.eat_word("graph") {
            let fault = cursor.unexpected("`graph @name {`");
            return if std::mem::replace(&mut self.is_lost, true) { Ok(()) } else { Err(fault) };
        }
        self.is_lost = false;
        let name = cursor.signed_name("@", "a graph's name (`@name`)");
        // A body is open in any case, so that the lines in it are looked at.
        self.body = Some(Body::new(number, name.as_ref().map(|n| n.text.clone()).unwrap_or_default()));
        name?;
        cursor.expect("{")?;
        cursor.expect_end()
    }

    /// Ends the graph that is being read, if there is one.
    fn close(&mut self, number: usize, is_closed: bool) {
        let Some(body) = self.body.take() else { return };
        if !is_closed {
            self.errors.push(whole_line(number, format!("the graph of line {} is not closed by `}}`", body.line)));
        }
        let (line, graph) = body.finish(&mut self.errors);
        self.graphs.push((line, graph));
    }
}

/// The error that a fault in a line is, unless it follows from another one.
fn error_at(number: usize, line: &str, fault: Fault) -> Option<ParseError> {
    let mut message = fault.message?;
    // Messages of type rules list names, which may be as long as the text.
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    let column = line[..fault.range.start].chars().count() + 1;
    Some(ParseError { line: number, column, width: line[fault.range].chars().count(), message })
}

/// A graph between its braces.
struct Body<'a> {
    line: usize,
    scope: Scope,
    /// Group starts may be named before they are defined. With the number and the text of the line.
    offsets: Vec<(AxisId, Name, usize, &'a str)>,
    /// Faults of the current line after which the line was read on.
    faults: Vec<Fault>,
}

impl<'a> Body<'a> {
    fn new(line: usize, name: String) -> Body<'a> {
        Body { line, scope: Scope::new(name), offsets: Vec::new(), faults: Vec::new() }
    }

    fn statement(&mut self, cursor: &mut Cursor<'a>, number: usize) -> Result<()> {
        if cursor.sees("%") {
            let name = cursor.signed_name("%", "a value")?;
            return self.define(cursor, name, number, Body::computed);
        }
        if cursor.eat_word("mesh") {
            return self.mesh(cursor);
        }
        if cursor.eat_word("axis") {
            return self.axes(cursor, number);
        }
        if cursor.eat_word("offsets") {
            return self.group_starts(cursor, number);
        }
        if cursor.eat_word("return") {
            return self.outputs(cursor);
        }
        let Some(role) = InputRole::from_name(cursor.peek_word()) else {
            return Err(cursor.unexpected("`%name = …`, an input, `mesh`, `axis`, `offsets`, `return` or `}`"));
        };
        cursor.expect(role.name())?;
        let name = cursor.signed_name("%", "a value (`%name`)")?;
        self.define(cursor, name, number, |body, cursor, name| {
            let value = body.input(cursor, name)?;
            body.scope.graph.inputs.extend(value.map(|value| Input { value, role }));
            Ok(value)
        })
    }

    /// Gives a name to what the rest of the line says; to nothing when that is wrong.
    fn define(
        &mut self,
        cursor: &mut Cursor<'_>,
        name: Name,
        number: usize,
        rest: impl FnOnce(&mut Body<'a>, &mut Cursor<'_>, Option<&str>) -> Result<Option<ValueId>>,
    ) -> Result<()> {
        let is_new = self.scope.check_new_value(&name);
        let value = rest(self, cursor, is_new.is_ok().then_some(name.text.as_str()));
        self.faults.extend(is_new.err());
        self.scope.define_value(name, number, value.as_ref().ok().copied().flatten());
        value.map(drop)
    }

    /// `: f32[d]`, after which the line ends.
    fn ty(&mut self, cursor: &mut Cursor<'_>) -> Result<Type> {
        cursor.expect(":")?;
        let start = cursor.start();
        let ty = self.scope.ty(cursor)?;
        let end = cursor.end();
        cursor.expect_end()?;
        match verify::type_is_legal(&self.scope.graph, &ty) {
            Ok(()) => Ok(ty),
            Err(message) => Err(Fault::new(start..end, message)),
        }
    }

    fn input(&mut self, cursor: &mut Cursor<'_>, name: Option<&str>) -> Result<Option<ValueId>> {
        let ty = self.ty(cursor)?;
        Ok(name.map(|name| self.scope.graph.push(Op::Input, vec![], ty, name)))
    }

    /// `= op %operand … : type`. When the op is wrong but the type is not, the value goes on as one of that type, so that its
    /// users are checked.
    fn computed(&mut self, cursor: &mut Cursor<'_>, name: Option<&str>) -> Result<Option<ValueId>> {
        let before = cursor.clone();
        let mut range = 0..0;
        let parsed = cursor.expect("=").and_then(|()| {
            let start = cursor.start();
            let parsed = attributes::parse(&self.scope, cursor)?;
            range = start..cursor.end();
            if cursor.sees(":") { Ok(parsed) } else { Err(cursor.unexpected("`:`")) }
        });
        let (op, operands) = match parsed {
            Ok(parsed) => parsed,
            Err(fault) => {
                self.faults.push(fault);
                // From the start, so that the colon of `{a: 0}` is passed by.
                *cursor = before;
                cursor.skip_to(':');
                // The fault stands; a type that is missing as well adds nothing to it.
                return if cursor.is_done() { Ok(None) } else { self.input(cursor, name) };
            }
        };
        let ty = self.ty(cursor)?;
        let op = match op {
            Op::Cast(_) => Op::Cast(ty.dtype),
            Op::LinearAttention(op) => Op::LinearAttention(Box::new(LinearAttention { result: ty.dtype, ..*op })),
            op => op,
        };
        let Some(name) = name else { return Ok(None) };
        let mut node = Node { op, operands, ty, name: name.to_string() };
        if let Err(message) = verify::node_is_legal(&self.scope.graph, &node) {
            self.faults.push(Fault::new(range, format!("`%{}`: {message}", shown(name))));
            node = Node { op: Op::Input, operands: vec![], ..node };
        }
        Ok(Some(self.scope.graph.push(node.op, node.operands, node.ty, name)))
    }

    /// `dp = 2, tp = 4`.
    fn mesh(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        loop {
            let name = cursor.name("a mesh dimension")?;
            if self.scope.graph.mesh.iter().any(|d| d.name == name.text) {
                return Err(Fault::new(name.range, format!("mesh dimension `{}` twice", shown(&name.text))));
            }
            cursor.expect("=")?;
            let start = cursor.start();
            let size = u32::try_from(cursor.number("how many ranks")?).ok().filter(|n| *n > 0);
            let size =
                size.ok_or_else(|| Fault::new(start..cursor.end(), "a mesh dimension has 1 to 2^32 - 1 ranks"))?;
            self.scope.graph.mesh.push(MeshDim { name: name.text, size });
            if !cursor.eat(",") {
                return cursor.expect_end();
            }
        }
    }

    /// `batch = 8, r = ragged(e, 4096) "label"`.
    fn axes(&mut self, cursor: &mut Cursor<'_>, number: usize) -> Result<()> {
        loop {
            let name = cursor.name("an axis")?;
            let before = cursor.clone();
            let axis = match self.axis(cursor, &name) {
                Ok(axis) => Some(self.scope.graph.push_axis(axis)),
                Err(fault) if self.faults.len() >= MAX_ERRORS => return Err(fault),
                Err(fault) => {
                    self.faults.push(fault);
                    // From the start, so that the comma of `ragged(a, 8)` is passed by.
                    *cursor = before;
                    cursor.skip_to(',');
                    None
                }
            };
            self.scope.declare_axis(name, number, axis);
            if !cursor.eat(",") {
                return cursor.expect_end();
            }
        }
    }

    fn axis(&mut self, cursor: &mut Cursor<'_>, name: &Name) -> Result<Axis> {
        self.scope.check_new_axis(name)?;
        cursor.expect("=")?;
        let extent = if cursor.eat_word("ragged") {
            cursor.expect("(")?;
            let start = cursor.start();
            let parent = self.scope.axis(cursor)?;
            if self.scope.graph.is_ragged(parent) {
                return Err(Fault::new(start..cursor.end(), "the parent of a ragged axis is ragged itself"));
            }
            cursor.expect(",")?;
            let bound = self.size(cursor)?;
            let even = if cursor.eat(",") { self.size(cursor)? } else { bound };
            cursor.expect(")")?;
            Extent::Ragged { parent, bound, even }
        } else {
            Extent::Fixed(self.size(cursor)?)
        };
        let label = if cursor.sees("\"") { Some(cursor.quoted()?.text) } else { None };
        if !cursor.sees(",") {
            cursor.expect_end()?;
        }
        Ok(Axis { name: name.text.clone(), extent, label })
    }

    fn size(&self, cursor: &mut Cursor<'_>) -> Result<u64> {
        let start = cursor.start();
        let size = cursor.number("a size or `ragged(parent, bound)`")?;
        if size <= verify::MAX_SIZE {
            return Ok(size);
        }
        Err(Fault::new(start..cursor.end(), "an axis has at most 2^62 elements"))
    }

    /// `r = %starts, …`.
    fn group_starts(&mut self, cursor: &mut Cursor<'a>, number: usize) -> Result<()> {
        loop {
            let ragged = self.scope.axis(cursor)?;
            cursor.expect("=")?;
            let starts = cursor.signed_name("%", "a value (`%name`)")?;
            self.offsets.push((ragged, starts, number, cursor.line()));
            if !cursor.eat(",") {
                return cursor.expect_end();
            }
        }
    }

    /// `loss ce = %l, …`.
    fn outputs(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        loop {
            let Some(role) = OutputRole::from_name(cursor.peek_word()) else {
                return Err(cursor.unexpected("what the output stands for (`carry`, `loss`, …)"));
            };
            cursor.expect(role.name())?;
            let name = cursor.name("the output's name")?;
            cursor.expect("=")?;
            let value = self.scope.value(cursor)?;
            self.scope.graph.add_output(name.text, value, role);
            if !cursor.eat(",") {
                return cursor.expect_end();
            }
        }
    }

    /// The graph, with the names resolved that could not be before.
    fn finish(mut self, errors: &mut Vec<ParseError>) -> (usize, Graph) {
        for (ragged, starts, number, line) in self.offsets {
            match self.scope.resolve(&starts) {
                Ok(value) => self.scope.graph.offsets.push((ragged, value)),
                Err(fault) if errors.len() < MAX_ERRORS => errors.extend(error_at(number, line, fault)),
                Err(_) => {}
            }
        }
        (self.line, self.scope.graph)
    }
}
