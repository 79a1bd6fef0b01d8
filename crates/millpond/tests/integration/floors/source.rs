//! Which file of a crate uses which other, read from its source.
//!
//! A file uses another if it names something that is defined there: in a `use` that hands nothing on, or in a path. Where
//! a name was handed on (`pub use`), the file counts that defines it; so a `mod.rs` that only hands on is used by nobody.
//!
//! A file also uses another by a call of a method that stands there, in a file beside that of its type. What the type is
//! of which a method is called is known for `self`. Else the name decides, where no other method has it.
//! Code for tests and models is not read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// What a file uses: each file, by its path below `src/`, with the names that are defined there.
pub(crate) type Uses = BTreeMap<String, BTreeSet<String>>;

/// The files of the crate whose root is `src/lib.rs` or, without one, `src/main.rs`, and what each uses.
pub(crate) fn read(src: &Path) -> BTreeMap<String, Uses> {
    let root = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|root| root.exists());
    let root = root.unwrap_or_else(|| panic!("{} has no lib.rs and no main.rs", src.display()));
    let mut tree = Tree { src: src.to_owned(), modules: Vec::new() };
    tree.add_file(&root, src, None);
    tree.uses()
}

struct Tree {
    src: PathBuf,
    modules: Vec<Module>,
}

#[derive(Default)]
struct Module {
    /// The file that it stands in, below `src/`.
    file: String,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    /// What is defined here, by name.
    items: HashSet<String>,
    /// What `use` brings in, by the name that it has here.
    imports: HashMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Each path that stands in the code.
    paths: HashSet<Vec<String>>,
    /// The methods that stand here, with their types.
    methods: HashSet<(String, String)>,
    /// The methods that are called here, and of which type where that is known.
    calls: HashSet<(Option<String>, String)>,
}

impl Tree {
    /// Reads a file as a module. Those below it lie in `folder`.
    fn add_file(&mut self, path: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file =
            path.strip_prefix(&self.src).expect("files lie below src").to_str().expect("as UTF-8").to_owned();
        self.add_module(&syntax.items, file, folder, parent)
    }

    fn add_module(
        &mut self,
        items: &[syn::Item],
        file: String,
        folder: &Path,
        parent: Option<usize>,
    ) -> usize {
        let at = self.modules.len();
        self.modules.push(Module { file: file.clone(), parent, ..Module::default() });
        for item in items {
            let syn::Item::Mod(module) = item else { continue };
            if is_for_tests(&module.attrs) {
                continue;
            }
            let name = module.ident.to_string();
            let inside = folder.join(&name);
            let child = if let Some((_, items)) = &module.content {
                self.add_module(items, file.clone(), &inside, Some(at))
            } else {
                let alone = folder.join(format!("{name}.rs"));
                let path = if alone.exists() { alone } else { inside.join("mod.rs") };
                self.add_file(&path, &inside, Some(at))
            };
            self.modules[at].children.insert(name, child);
        }
        let mut reader = Reader { module: &mut self.modules[at], of: None };
        items.iter().for_each(|item| reader.visit_item(item));
        at
    }

    /// By the name of a method, each type that has it, with the file in which it stands.
    fn methods(&self) -> HashMap<&str, Vec<(&str, &str)>> {
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for module in &self.modules {
            for (of, name) in &module.methods {
                all.entry(name.as_str()).or_default().push((of.as_str(), module.file.as_str()));
            }
        }
        all
    }

    /// The file in which a method stands that is called, if that is another than its type's.
    fn home_of<'a>(
        &'a self,
        methods: &HashMap<&str, Vec<(&str, &'a str)>>,
        (of, name): &(Option<String>, String),
    ) -> Option<&'a str> {
        let named = methods.get(name.as_str())?;
        let (of, file) = match of {
            Some(of) => named.iter().find(|(known, _)| known == of)?,
            None => named.first().filter(|_| named.len() == 1)?,
        };
        let is_at_home = |module: &Module| module.file == *file && module.items.contains(*of);
        (!self.modules.iter().any(is_at_home)).then_some(*file)
    }

    fn uses(&self) -> BTreeMap<String, Uses> {
        let mut all = BTreeMap::new();
        let methods = self.methods();
        for (at, module) in self.modules.iter().enumerate() {
            let uses: &mut Uses = all.entry(module.file.clone()).or_default();
            for path in &module.paths {
                if let Some(Target::Item(home, name)) = self.resolve(at, path, &mut HashSet::new())
                    && self.modules[home].file != module.file
                {
                    uses.entry(self.modules[home].file.clone()).or_default().insert(name);
                }
            }
            for call in &module.calls {
                if let Some(file) = self.home_of(&methods, call).filter(|file| *file != module.file) {
                    uses.entry(file.to_owned()).or_default().insert(format!("{}()", call.1));
                }
            }
        }
        all
    }

    /// What a path means in a module: as far as to the first thing on it that is no module.
    fn resolve(&self, at: usize, path: &[String], seen: &mut HashSet<(usize, String)>) -> Option<Target> {
        let Some((first, rest)) = path.split_first() else { return Some(Target::Module(at)) };
        let module = &self.modules[at];
        match first.as_str() {
            "crate" => return self.resolve(0, rest, seen),
            "self" => return self.resolve(at, rest, seen),
            "super" => return self.resolve(module.parent?, rest, seen),
            _ => {}
        }
        if let Some(&child) = module.children.get(first)
            && !(rest.is_empty() && module.items.contains(first))
        {
            return self.resolve(child, rest, seen);
        }
        if module.items.contains(first) {
            return Some(Target::Item(at, first.clone()));
        }
        // Two modules may hand on everything of each other.
        if !seen.insert((at, first.clone())) {
            return None;
        }
        if let Some(import) = module.imports.get(first) {
            return match self.resolve(at, import, seen)? {
                Target::Module(at) => self.resolve(at, rest, seen),
                item @ Target::Item(..) => Some(item),
            };
        }
        module.globs.iter().find_map(|glob| match self.resolve(at, glob, seen)? {
            Target::Module(at) => self.resolve(at, path, seen),
            Target::Item(..) => None,
        })
    }
}

enum Target {
    Module(usize),
    /// The module that defines it, and its name.
    Item(usize, String),
}

/// Whether these attributes keep the code out of what programs get.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args().is_ok_and(|condition: syn::Meta| !can_hold(&condition))
    })
}

/// Whether the condition of a `cfg` can hold outside tests and models.
fn can_hold(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => !["test", "loom", "miri"].iter().any(|name| path.is_ident(name)),
        syn::Meta::List(list) if list.path.is_ident("all") => parts(list).iter().all(can_hold),
        syn::Meta::List(list) if list.path.is_ident("any") => parts(list).iter().any(can_hold),
        _ => true,
    }
}

fn parts(list: &syn::MetaList) -> Vec<syn::Meta> {
    let comma_separated = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
    list.parse_args_with(comma_separated).expect("a condition of `cfg`").into_iter().collect()
}

/// Notes what one module defines, brings in and names.
struct Reader<'a> {
    module: &'a mut Module,
    /// The type whose methods are read.
    of: Option<String>,
}

impl Reader<'_> {
    fn import(&mut self, tree: &syn::UseTree, before: &[String], hands_on: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let mut leaf = |name: String, path: Vec<String>| {
            if !hands_on {
                self.module.paths.insert(path.clone());
            }
            self.module.imports.insert(name, path);
        };
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), hands_on),
            syn::UseTree::Name(name) if name.ident == "self" => {
                leaf(before.last().expect("`self` stands in a group").clone(), before.to_vec());
            }
            syn::UseTree::Name(name) => leaf(name.ident.to_string(), with(&name.ident)),
            syn::UseTree::Rename(name) => leaf(name.rename.to_string(), with(&name.ident)),
            syn::UseTree::Glob(_) => self.module.globs.push(before.to_vec()),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, hands_on));
            }
        }
    }

    /// What a macro is given or becomes cannot be parsed: each row of names joined by `::` counts as a path.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons, mut after_dot) = (Vec::new(), 0, false);
        for token in tokens {
            match &token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.module.paths.insert(std::mem::take(&mut path));
                    }
                    if !after_dot {
                        path.push(name.to_string());
                    }
                    (colons, after_dot) = (0, false);
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Punct(mark) if mark.as_char() == '$' => continue,
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                _ => {}
            }
            after_dot = matches!(&token, TokenTree::Punct(mark) if mark.as_char() == '.');
            if colons == 0 || !matches!(&token, TokenTree::Punct(mark) if mark.as_char() == ':') {
                self.module.paths.insert(std::mem::take(&mut path));
                colons = 0;
            }
        }
        self.module.paths.insert(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item::{Const, Enum, Fn, Macro, Static, Struct, Trait, Type, Union, Use};
        let (name, attributes) = match item {
            Const(item) => (Some(&item.ident), &item.attrs),
            Enum(item) => (Some(&item.ident), &item.attrs),
            Fn(item) => (Some(&item.sig.ident), &item.attrs),
            Macro(item) => (item.ident.as_ref(), &item.attrs),
            Static(item) => (Some(&item.ident), &item.attrs),
            Struct(item) => (Some(&item.ident), &item.attrs),
            Trait(item) => (Some(&item.ident), &item.attrs),
            Type(item) => (Some(&item.ident), &item.attrs),
            Union(item) => (Some(&item.ident), &item.attrs),
            Use(item) => (None, &item.attrs),
            syn::Item::Impl(item) => (None, &item.attrs),
            _ => return,
        };
        if !is_for_tests(attributes) {
            self.module.items.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let hands_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &[], hands_on);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = match &*item.self_ty {
            syn::Type::Path(of) => of.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let methods = item.items.iter().filter_map(|item| match item {
            syn::ImplItem::Fn(function) if !is_for_tests(&function.attrs) => Some(&function.sig.ident),
            _ => None,
        });
        if let Some(of) = of.as_ref().filter(|_| item.trait_.is_none()) {
            self.module.methods.extend(methods.map(|name| (of.clone(), name.to_string())));
        }
        let outside = std::mem::replace(&mut self.of, of);
        visit::visit_item_impl(self, item);
        self.of = outside;
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let methods = item.items.iter().filter_map(|item| match item {
            syn::TraitItem::Fn(function) => Some(&function.sig.ident),
            _ => None,
        });
        self.module.methods.extend(methods.map(|name| (item.ident.to_string(), name.to_string())));
        visit::visit_item_trait(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let is_self = matches!(&*call.receiver, syn::Expr::Path(receiver) if receiver.path.is_ident("self"));
        self.module.calls.insert((self.of.clone().filter(|_| is_self), call.method.to_string()));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [of, name] = &names[..]
            && of == "Self"
        {
            self.module.calls.insert((self.of.clone(), name.clone()));
        }
        self.module.paths.insert(names);
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.read_tokens(invocation.tokens.clone());
    }
}
