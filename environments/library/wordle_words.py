"""The words of wordle: plain English words of five letters, written down for it by topic (food, house, verbs, ...).

A change of the list changes problems: it raises the environment's version.
"""

_TEXT = """
abbey above actor admit adore adult after again agree alarm album alert alibi alien alley allow amaze amber anger
angle angry ankle apple apron arena argue armor arrow asked aspen attic aunts award azure bacon badge bagel baked
baker banjo banks barge barks basic basil basin bathe beach beads beans beard begin beige below belts bench bends
berry bills bingo birch bites black blame blaze blend bless bliss blond blood bloom blunt board boils bones bonus
books booth boots boxes brain brake brand brass brave bread brick bring brisk broad broil broom broth brown brush
build bumpy bunch bunny buyer bytes cabin cable calls camel canal candy canoe cards cargo carry carve catch cause
caves cedar chain chair chalk chant charm chart chase cheap cheek cheer chess chest chews chief child chili choir
chord cider civic civil claim clams clash class claws clean clear clerk cliff climb cling clock close cloth cloud
clove coach coast cocoa codes coins cooks coral costs couch cough count court cover crabs craft crane crate crawl
crazy cream creek creep crews cried crime crisp cross crowd crown crows crumb crush crust cubes cumin curly curry
curve cycle daily daisy dance dated decor delay denim dense depth diary dirty dizzy docks dodge dolls dolly donor
donut doors doubt dough dozen draft drags drain drama drank draws dream dress drift drill drink drips drive drops
drown drums ducks dusts dusty dwarf eager eagle early earns earth eaten edges eight elbow elder elect elves email
empty ended enemy enjoy enter equal equip erase error essay event every exact exams exits extra fable facts fairy
faith false fancy fatal favor fears feast fence ferns ferry fetch fever fiber field fiery fifty fight final finch
fires first fixed flair flaky flame flash fleet flies fling float flock flood floor flour flows fluid flute focus
foggy folds force forge forms forty forum fouls found frail frame fraud fresh fried fries frisk frogs front frost
frown fruit fudge fully funny furry fuzzy games gecko geese genre ghost giant given glare glass gleam glide globe
gloom glory gloss glove goals goats going gooey goose grabs grace grade grain grand grant grape graph grasp grass
grave gravy greed green greet grief grill grimy grind groan group grove growl grows gruel guard guava guess guest
guide guild guilt habit hairs hairy halve hands handy hangs happy hardy haste hated haunt haven hawks hears heart
heavy hedge hello hence herbs hills hinge hired hives hobby hoist holds honey honor hopes horse hotel hound hours
house hover human humor hurry hyena icing ideas image index inner input irony issue itchy ivory jails jeans jelly
jewel joint joker jolly judge juice juicy jumps jumpy juror kayak kebab khaki kicks kitty knack kneel knees knife
knits knock knots koala label labor ladle lanes large latch later latte laugh layer leafy leans learn leash leave
leeks legal lemon lends level lever lifts light liked lilac limit linen lines links lists llama loans local locks
lodge logic looks loose loves lower loyal lucky lunar lunch magic mails major maker mango manor maple march marry
marsh match maths mayor medal media melon melts mercy merge merry messy metal meter metro might miles mince miner
minor minty misty mixes moans mocha model money month moody moose moral motel moths motor motto mount mouse mouth
moves movie muddy mural mushy music nails named nasty naval needs nerve never niche niece night ninja noble noise
noisy north notes nouns novel nurse oasis oaths occur ocean offer often olden olive onion opens opera order other
otter ought ounce outdo outer owner ozone pages paint palms panda panel panic pants paper parks party pasta patch
pause peace peach pearl pedal perch petal petty phase phone photo piano picks piece pills pilot pinch pipes pitch
pivot pixel pizza place plain plane plant plate plaza plows pluck poets point polar polls poppy porch ports posse
pouch pound pours power prank prawn press price pride prime print prism prize probe proof props proud prune pulls
pulse punch puppy purse quack quake quart queen quest queue quick quiet quill quilt quirk quite quote radar radio
rainy raise rakes rally ranch range rapid ratio raven reach react reads ready realm rebel reign relax relay reply
resin rhyme rider rides ridge rifle right rings rinse risky rival river roads roast robin robot rocky rodeo roots
rough round route rover royal rugby ruler rules rural rusty salad sales salon salty sandy satin sauce sauna saves
scale scare scarf scars scene scoop score scout scrap screw scrub seeds seize sense serve setup seven sewed shack
shady shake shame shape share shark sharp shave sheep sheet shelf shell shift shine shiny shirt shock shoes shoot
shops shore short shout shove shrub shrug shuts sides siege sieve sighs sight silky silly since sings siren sites
sixth sixty skate skill skirt skull skunk slang slate sleek sleep sleet slide slips slope sloth small smart smash
smell smile smoke smoky snack snail snake snare sneak snowy socks solar solid solve songs sonic sound south spade
spare spark speak spear speed spell spend spice spicy spike spill spine split spoil spoon sport spray squad squid
stack stage stain stair stake stale stall stamp stand stare stark start state stays steak steal steam steel steep
steer stems steps stick still sting stirs stock stone stony stool stoop store stork storm story stout stove straw
strip study stuff style sugar suits sunny super surge swamp swans swarm swear sweat sweep sweet swift swing swirl
sword syrup table tails tally tango tangy taste taxes teach teams tears teddy teeth tempo tests texts thank theft
their theme there these thick thief thing think third thorn those three throb throw thumb thyme tiger tight tiles
tired title toads toast today token tools tooth topaz topic torch torso total touch tough towel tower toxic trace
track trade trail train tramp tread treat trees trend trial tribe trick trips troop trout truce truck truly trunk
trust truth tulip tuner tutor twice twins twist ulcer uncle under union unite until upper upset urban usher usual
value vault vegan venue verbs verse vests video vigor villa vines viola virus visit visor vista vital vocal voice
votes vowel wafer wagon waist waits waltz wants wasps waste watch water weary weave weeps weigh weird whale wharf
wheat wheel where which whine whirl white whole widow width windy wings wiped wires witty woman woods words world
worms worry would wound woven wraps wreck wrist write yacht yards yawns years yeast yells young youth zebra
"""
WORDS = _TEXT.split()
