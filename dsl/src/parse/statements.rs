//! Statements.

use super::lists::Place;
use super::words::STATEMENT_WORDS;
use super::{Failed, MAX_BODIES, Parse, Parser};
use crate::ast::{Body, Expr, Ident, Initializer, InputDecl, Statement, StatementKind, Target, TensorDecl};
use crate::diagnostics::{Diagnostic, closest, quote};
use crate::lex::TokenKind;

impl Parser<'_> {
    /// Statements between braces. Fails without `{`; everything after it is recovered from.
    pub(super) fn body(&mut self) -> Parse<Body> {
        let open_index = self.pos;
        let start = self.span();
        let open = self.expect(TokenKind::OpenBrace, "`{`")?;
        if self.bodies >= MAX_BODIES {
            let diagnostic = Diagnostic::error("E0104", self.id, open.span, "bodies are nested too deeply");
            self.report(
                diagnostic.label(format!("more than {MAX_BODIES} levels")).help("move the inner part into a block"),
            );
            self.skip_body(open_index);
            return Err(Failed);
        }
        self.bodies += 1;
        let statements = self.statements();
        self.bodies -= 1;
        if !self.eat(TokenKind::CloseBrace) && !self.full() {
            self.missing_brace(open);
        }
        Ok(Body { statements, span: self.span_from(start) })
    }

    fn statements(&mut self) -> Vec<Statement> {
        let mut statements: Vec<Statement> = Vec::new();
        while !self.full() {
            match self.kind() {
                TokenKind::Newline | TokenKind::Semicolon => {
                    self.bump();
                }
                TokenKind::CloseBrace | TokenKind::End | TokenKind::Model | TokenKind::Block => break,
                _ => {
                    let statement = self.statement();
                    self.after_return(statements.last(), &statement);
                    statements.push(statement);
                }
            }
        }
        statements
    }

    fn after_return(&mut self, previous: Option<&Statement>, statement: &Statement) {
        if let Some(Statement { kind: StatementKind::Return(_), span }) = previous {
            let diagnostic = Diagnostic::error("E0111", self.id, statement.span, "this is never reached")
                .label("after `return`")
                .secondary(*span, "the block ends here")
                .help("`return` is the last statement of a block");
            self.report_again(diagnostic);
        }
    }

    fn statement(&mut self) -> Statement {
        let start = self.span();
        let kind = match self.statement_kind() {
            Ok(kind) => {
                if !self.at_separator() {
                    self.trailing(&kind);
                    self.skip_statement();
                }
                kind
            }
            Err(Failed) => {
                self.skip_statement();
                StatementKind::Error
            }
        };
        Statement { kind, span: self.span_from(start) }
    }

    pub(super) fn at_separator(&self) -> bool {
        use TokenKind::*;
        matches!(self.kind(), Newline | Semicolon | CloseBrace | End | Model | Block)
    }

    /// Complains about what follows a complete statement on its line.
    fn trailing(&mut self, kind: &StatementKind) {
        let diagnostic = match self.kind() {
            TokenKind::CloseParen | TokenKind::CloseBracket => {
                let bracket = self.text();
                self.error("E0103", format!("this `{bracket}` closes nothing")).label("no bracket is open here")
            }
            TokenKind::Assign => self.assign_in_expression(),
            TokenKind::If => self.error("E0101", "`if` is a statement, not part of an expression").help(
                "`where(c, a, b)` chooses element by element; `if c { … } else { … }` chooses between definitions",
            ),
            kind if kind.starts_statement() => self
                .error("E0101", format!("expected the end of the line, found {}", self.found()))
                .help("statements stand on lines of their own, or are separated by `;`"),
            TokenKind::Comma if matches!(kind, StatementKind::Const { .. }) => {
                self.error("E0101", "one constant a line").help("repeat `const` on the next line")
            }
            _ => {
                self.expected("an operator or the end of the line");
                return;
            }
        };
        self.report(diagnostic);
    }

    /// A second `=`. Often the line above ends with an operator by mistake, and this one belongs to it.
    pub(super) fn assign_in_expression(&mut self) -> Diagnostic {
        let diagnostic = self.error("E0106", "`=` inside an expression");
        if let [.., before, name] = self.tokens[..self.pos] {
            let other_line = self.source[before.span.end as usize..name.span.start as usize].contains('\n');
            if other_line && name.kind == TokenKind::Ident {
                let label = format!("this line goes on because of the {}", quote(self.slice(before.span)));
                return diagnostic.secondary(before.span, label);
            }
        }
        diagnostic.help("`==` compares; a definition has one `=`")
    }

    fn statement_kind(&mut self) -> Parse<StatementKind> {
        match self.kind() {
            TokenKind::Input => Ok(StatementKind::Input(self.comma_list(Self::input_decl)?)),
            TokenKind::Const => self.constant(),
            TokenKind::Param => Ok(StatementKind::Param(self.comma_list(|p| p.tensor_decl("param"))?)),
            TokenKind::State => Ok(StatementKind::State(self.comma_list(|p| p.tensor_decl("state"))?)),
            TokenKind::Stat => self.stat(),
            TokenKind::Update => self.update(),
            TokenKind::Loss => self.loss(),
            TokenKind::Output => Ok(StatementKind::Output(self.comma_list(|p| p.name_of("an output"))?)),
            TokenKind::Repeat => self.repeat(),
            TokenKind::If => self.if_chain(),
            TokenKind::Return => Ok(StatementKind::Return(self.comma_list(Self::expr)?)),
            TokenKind::Ident => self.definition(),
            _ => Err(self.not_a_statement()),
        }
    }

    fn not_a_statement(&mut self) -> Failed {
        match self.kind() {
            TokenKind::Else => {
                let diagnostic = self.error("E0105", "`else` without `if`");
                self.report(diagnostic.label("no `if { … }` ends just before it"))
            }
            TokenKind::CloseParen | TokenKind::CloseBracket => {
                let bracket = self.text();
                let diagnostic = self.error("E0103", format!("this `{bracket}` closes nothing"));
                self.report(diagnostic.label("no bracket is open here"))
            }
            TokenKind::OpenParen | TokenKind::Int | TokenKind::Float | TokenKind::Minus => {
                let diagnostic = self.error("E0105", "a value by itself does nothing");
                self.report(diagnostic.help("give it a name: `y = …`"))
            }
            _ => self.expected("a statement"),
        }
    }

    /// `a, b, …` after a keyword; at least one.
    fn comma_list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parse<T>) -> Parse<Vec<T>> {
        self.bump();
        let mut items = vec![item(self)?];
        while self.at(TokenKind::Comma) {
            let comma = self.bump();
            if self.at_statement_end() {
                let diagnostic = Diagnostic::error("E0101", self.id, comma.span, "nothing follows this comma");
                return Err(self.report(diagnostic.help("remove it, or go on on this line or the next")));
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn equals(&mut self) -> Parse<()> {
        if self.at(TokenKind::Equal) {
            let diagnostic = self.error("E0106", "`==` compares; a definition has one `=`");
            self.report(diagnostic.help("write `=`"));
            self.bump();
            return Ok(());
        }
        self.expect(TokenKind::Assign, "`=`").map(|_| ())
    }

    fn input_decl(&mut self) -> Parse<InputDecl> {
        let name = self.defined("an input")?;
        if !self.at(TokenKind::Colon) {
            let diagnostic = self.error("E0107", format!("the input `{}` has no type", name.name));
            return Err(self.report(diagnostic.help(format!("write `{}: token[batch, seq]`", name.name))));
        }
        self.bump();
        let kind = self.ident("the type of an input")?;
        if !self.at(TokenKind::OpenBracket) {
            let diagnostic = self.error("E0107", format!("the input `{}` has no axes", name.name));
            return Err(self.report(diagnostic.help(format!("write `{}[batch, seq]`", kind.name))));
        }
        let axes = self.axis_decls()?;
        let span = self.span_from(name.span);
        Ok(InputDecl { name, kind, axes, span })
    }

    /// `w[d, f] = normal(0.02)`
    fn tensor_decl(&mut self, keyword: &str) -> Parse<TensorDecl> {
        let name = self.defined("a tensor")?;
        let mut axes = Vec::new();
        if self.at(TokenKind::OpenBracket) {
            axes = self.axis_decls()?;
        } else {
            let word = &name.name;
            let diagnostic = Diagnostic::error("E0107", self.id, name.span, format!("`{word}` has no axes"))
                .label("expected `[…]` after the name")
                .help(format!("write `{keyword} {word}[d]`, or `{keyword} {word}[]` for a single number"));
            self.report_again(diagnostic);
        }
        let span = self.span_from(name.span);
        let init = if self.eat(TokenKind::Assign) { Some(self.initializer()?) } else { None };
        Ok(TensorDecl { name, axes, init, span })
    }

    fn initializer(&mut self) -> Parse<Initializer> {
        if matches!(self.kind(), TokenKind::Int | TokenKind::Float | TokenKind::Minus) {
            let diagnostic = self.error("E0101", "expected an initialiser, found a number");
            return Err(self.report(diagnostic.help("write `constant(…)`, `zeros` or `ones`")));
        }
        let name = self.ident("an initialiser: `zeros`, `ones`, `normal(0.02)`, …")?;
        let args = if self.at(TokenKind::OpenParen) {
            self.list(TokenKind::CloseParen, Self::expr, |_| None)?
        } else {
            Vec::new()
        };
        let span = self.span_from(name.span);
        Ok(Initializer { name, args, span })
    }

    fn constant(&mut self) -> Parse<StatementKind> {
        self.bump();
        let name = self.defined("a constant")?;
        if self.at(TokenKind::OpenBracket) {
            let diagnostic = self.error("E0101", "a constant has no axes");
            return Err(self.report(diagnostic.help(format!("without `const`, `{}[…] = …` is a tensor", name.name))));
        }
        self.equals()?;
        Ok(StatementKind::Const { name, value: self.expr()? })
    }

    fn stat(&mut self) -> Parse<StatementKind> {
        self.bump();
        let target = self.target("a statistic")?;
        self.equals()?;
        Ok(StatementKind::Stat { target, value: self.expr()? })
    }

    fn update(&mut self) -> Parse<StatementKind> {
        self.bump();
        let name = self.name_of("a state")?;
        if self.at(TokenKind::OpenBracket) {
            let diagnostic = self.error("E0101", "an update names the whole state");
            return Err(self.report(diagnostic.help(format!("write `update {} = …`", name.name))));
        }
        self.equals()?;
        Ok(StatementKind::Update { name, value: self.expr()? })
    }

    /// `a[i, j]` on the left side of `=`.
    fn target(&mut self, what: &str) -> Parse<Target> {
        let name = self.defined(what)?;
        let axes = if self.at(TokenKind::OpenBracket) { Some(self.indices(Place::Define)?) } else { None };
        let span = self.span_from(name.span);
        Ok(Target { name, axes, span })
    }

    fn definition(&mut self) -> Parse<StatementKind> {
        self.recognisable_definition()?;
        let mut targets = vec![self.target("a tensor")?];
        while self.eat(TokenKind::Comma) {
            targets.push(self.target("a tensor")?);
        }
        if self.kind().is_binary_operator() && self.nth(1) == TokenKind::Assign {
            let (name, op) = (targets[0].name.name.clone(), self.text());
            let diagnostic = self.error("E0105", format!("there is no `{op}=`"));
            return Err(self.report(diagnostic.help(format!("write `{name} = {name} {op} …`"))));
        }
        self.equals()?;
        Ok(StatementKind::Define { targets, value: self.expr()? })
    }

    /// Looks at what follows a name at the start of a statement, for mistakes that are not about definitions.
    fn recognisable_definition(&mut self) -> Parse<()> {
        let word = self.text();
        let next = self.nth(1);
        if matches!(next, TokenKind::Assign | TokenKind::OpenBracket | TokenKind::Comma) {
            return Ok(());
        }
        let keyword = closest(&word.to_lowercase(), STATEMENT_WORDS.iter().copied());
        let starts_operand = next.ends_operand() || next == TokenKind::OpenBrace || next.is_reserved_word();
        if let (Some(keyword), true) = (keyword, starts_operand && next != TokenKind::CloseParen) {
            let diagnostic = self.error("E0105", format!("`{word}` is not a statement"));
            return Err(self.report(diagnostic.help(format!("did you mean `{keyword}`?"))));
        }
        if matches!(word, "let" | "var" | "for" | "while" | "def" | "fn" | "import") && starts_operand {
            let diagnostic = self.error("E0105", format!("there is no `{word}` statement"));
            let help = match word {
                "let" | "var" => "a definition is written `y = …`",
                "for" | "while" => "`repeat i in n { … }` repeats",
                "import" => "blocks of the standard library are visible everywhere",
                _ => "blocks are defined outside of models: `block name(x[.., d]) { … }`",
            };
            return Err(self.report(diagnostic.help(help)));
        }
        if matches!(next, TokenKind::OpenParen | TokenKind::At) {
            let diagnostic = self.error("E0105", "the result of this call has no name");
            return Err(self.report(diagnostic.help(format!("write `y = {word}(…)`"))));
        }
        Ok(())
    }

    fn loss(&mut self) -> Parse<StatementKind> {
        self.bump();
        let name = self.name_of("a loss")?;
        self.equals()?;
        let value = self.expr()?;
        let (mut per, mut weight, mut scope) = (None, None, None);
        loop {
            if self.eat_clause("per") {
                let clause = self.expr()?;
                self.once(&mut per, clause, |e| e, "per");
            } else if self.eat_clause("weight") {
                let clause = self.expr()?;
                self.once(&mut weight, clause, |e| e, "weight");
            } else if self.eat_clause("scope") {
                let clause = self.ident("`micro`, `sequence`, `group` or `global`")?;
                self.once_name(&mut scope, clause);
            } else {
                return Ok(StatementKind::Loss { name, value, per, weight, scope });
            }
        }
    }

    fn once(&mut self, slot: &mut Option<Expr>, value: Expr, span: fn(&Expr) -> &Expr, word: &str) {
        if let Some(first) = slot {
            let (first, second) = (first.span, span(&value).span);
            self.twice(word, first, second);
        }
        slot.get_or_insert(value);
    }

    fn once_name(&mut self, slot: &mut Option<Ident>, value: Ident) {
        if let Some(first) = slot {
            let (first, second) = (first.span, value.span);
            self.twice("scope", first, second);
        }
        slot.get_or_insert(value);
    }

    fn twice(&mut self, word: &str, first: crate::ast::Span, second: crate::ast::Span) {
        let diagnostic = Diagnostic::error("E0117", self.id, second, format!("`{word}` twice in one loss"));
        self.report_again(diagnostic.label("the second one").secondary(first, "the first one"));
    }

    /// `repeat [i in] count { … }`
    fn repeat(&mut self) -> Parse<StatementKind> {
        self.bump();
        let has_counter = self.at(TokenKind::Ident) && self.nth(1) == TokenKind::Ident && self.nth_text(1) == "in";
        let counter = if has_counter {
            let name = self.defined("a counter")?;
            self.bump();
            Some(name)
        } else {
            None
        };
        let count = self.expr()?;
        self.skip_newlines();
        let body = self.body()?;
        Ok(StatementKind::Repeat { counter, count, body })
    }

    fn if_chain(&mut self) -> Parse<StatementKind> {
        let mut branches = Vec::new();
        loop {
            self.bump();
            let condition = self.condition()?;
            self.skip_newlines();
            branches.push((condition, self.body()?));
            if !self.eat_else() {
                return Ok(StatementKind::If { branches, otherwise: None });
            }
            if !self.at(TokenKind::If) {
                self.skip_newlines();
                let otherwise = Some(self.body()?);
                return Ok(StatementKind::If { branches, otherwise });
            }
        }
    }

    /// Takes `else`, also at the start of a following line.
    fn eat_else(&mut self) -> bool {
        if self.at(TokenKind::Newline) && self.nth(1) == TokenKind::Else {
            self.bump();
        }
        self.eat(TokenKind::Else)
    }

    /// A condition; `=` for `==` is pointed out and read as meant.
    fn condition(&mut self) -> Parse<Expr> {
        let condition = self.expr()?;
        if !self.at(TokenKind::Assign) {
            return Ok(condition);
        }
        let diagnostic = self.error("E0106", "`=` defines; `==` compares");
        self.report(diagnostic.help("write `==`"));
        self.bump();
        self.expr()
    }
}
