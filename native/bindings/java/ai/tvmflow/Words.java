// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Translation of messages of the library, from functions and options of C to those of Java. */
final class Words {
    /** Texts and their replacements in Java, applied in this order. */
    private static final String[][] TEXTS = {
        {"set TVMFLOW_PROFILE in the options' flags", "open the model with ModelOptions.profile(true)"},
        {"without TVMFLOW_PROFILE", "without ModelOptions.profile"},
        {"name the library in the options", "name the library with ModelOptions.openclLibrary"},
        {"the options' weights_path", "ModelOptions.weights"},
        {"faults in the options", "faults in ModelOptions.drivers"},
        {"The options' device_index", "ModelOptions.device"},
        {"The options' backend", "ModelOptions.backend"},
        {"The options' priority", "ModelOptions.priority"},
        {"The options' performance", "ModelOptions.performance"},
        {"planes, cl_memory and hardware_buffer", "buffers with planes and a HardwareBuffer"},
        {"tvmflow_wait", "Model.await"},
        {"tvmflow_tune_wait", "Model.awaitTuning"},
        {"tvmflow_input", "Model.inputs"},
        {"tvmflow_output", "Model.outputs"},
    };

    /**
     * Pattern of functions whose method has the same name, such as {@code tvmflow_set_input}; it
     * does not match the function that a library lacks.
     */
    private static final Pattern FUNCTION =
            Pattern.compile("(?<!no function )\\btvmflow_([a-z]+(?:_[a-z]+)*)\\b");

    private Words() {}

    static String inJava(String message) {
        String text = message;
        for (String[] pair : TEXTS) {
            // A name must not be part of a longer name.
            String end = Character.isLetter(pair[0].charAt(pair[0].length() - 1)) ? "\\b" : "";
            text = text.replaceAll(Pattern.quote(pair[0]) + end, Matcher.quoteReplacement(pair[1]));
        }
        Matcher function = FUNCTION.matcher(text);
        StringBuffer result = new StringBuffer();
        while (function.find()) {
            StringBuilder name = new StringBuilder("Model.");
            for (String part : function.group(1).split("_")) {
                boolean first = name.length() == "Model.".length();
                name.append(first ? part.charAt(0) : Character.toUpperCase(part.charAt(0)));
                name.append(part, 1, part.length());
            }
            function.appendReplacement(result, Matcher.quoteReplacement(name.toString()));
        }
        return function.appendTail(result).toString();
    }
}
